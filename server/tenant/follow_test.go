package tenant

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// aged has all files of a folder, links included, look as if nobody had touched
// them for an hour.
func (w *world) aged(folder string) {
	w.t.Helper()
	old := time.Now().Add(-time.Hour)
	err := filepath.WalkDir(folder, func(path string, _ os.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(path, time.Time{}, old))
	})
	testutil.NoError(w.t, err)
}

// counting counts the looks at files, and at folders alone.
type counting struct {
	source
	files, folders map[string]int
}

func (c *counting) still(name string, was stamp, files bool) bool {
	if files {
		c.files[name]++
	} else {
		c.folders[name]++
	}
	return c.source.still(name, was, files)
}

// The looks of a server that runs are at each tenant's files in turn, and the one
// that is asked for is at all of them.
func TestFilesAreLookedAtInTurn(t *testing.T) {
	w := newWorld(t)
	names := []string{"a", "b", "c", "d"}
	for _, name := range names {
		w.tenant(name, name+".example")
		w.aged(filepath.Join(w.path, name))
	}
	d := w.open()
	for _, e := range d.entries {
		e.read = time.Now() // or else its turn to be read again may have come
	}
	count := &counting{source: d.source}
	d.source = count
	const passes = 4
	for _, look := range []struct {
		do             func()
		files, folders int
	}{{func() { d.look(false) }, passes, passes * (filesEvery - 1)}, {d.Look, passes * filesEvery, 0}} {
		count.files, count.folders = make(map[string]int), make(map[string]int)
		for range passes * filesEvery {
			look.do()
		}
		for _, name := range names {
			testutil.Holds(t, count.files[name] == look.files && count.folders[name] == look.folders,
				"%s: %d looks at its files and %d at its folder, want %d and %d", name, count.files[name], count.folders[name], look.files, look.folders)
		}
	}
}

// Whoever takes a tenant or a CA away has at most 10 s to wait until its links are
// cut, which is at once when the server knows, however the files are changed.
func TestWhatIsTakenAwayIsKnownInTime(t *testing.T) {
	const bound = 10 * time.Second
	other := func(w *world) string { return string(newCA(w.t).CertPEM) }
	for what, c := range map[string]struct {
		make   func(w *world)
		change func(w *world, folder string) error
	}{
		"the folder": {(*world).plain, func(w *world, folder string) error {
			return os.Rename(folder, filepath.Join(w.path, ".away"))
		}},
		"the settings": {(*world).plain, func(w *world, folder string) error {
			return os.Remove(filepath.Join(folder, SettingsFile))
		}},
		"a CA's file": {(*world).plain, func(w *world, folder string) error {
			return os.Remove(filepath.Join(folder, ClientsCAFile))
		}},
		"a CA, in place": {(*world).plain, func(w *world, folder string) error {
			w.put("a", ClientsCAFile, other(w))
			return nil
		}},
		"a CA, in place behind a link": {(*world).volume, func(w *world, folder string) error {
			w.put("a", ClientsCAFile, other(w))
			return nil
		}},
		"a CA, by another file": {(*world).plain, func(w *world, folder string) error {
			w.put("a", ".new", other(w))
			return os.Rename(filepath.Join(folder, ".new"), filepath.Join(folder, ClientsCAFile))
		}},
		"a CA, by the link of a volume": {(*world).volume, func(w *world, folder string) error {
			w.tenant("a/..2", "a.example")
			w.put("a/..2", ClientsCAFile, other(w))
			return w.swap(folder, "..2")
		}},
		"a CA, by the link of a volume of all": {(*world).volumeOfAll, func(w *world, folder string) error {
			w.tenant("..2/a", "a.example")
			w.put("..2/a", ClientsCAFile, other(w))
			return w.swap(w.path, "..2")
		}},
		"the folder, by the link of a volume of all": {(*world).volumeOfAll, func(w *world, folder string) error {
			return errors.Join(os.Mkdir(filepath.Join(w.path, "..2"), 0o755), w.swap(w.path, "..2"), os.Remove(folder))
		}},
	} {
		for turn := range time.Duration(filesEvery) { // that the files may have when it happens
			testutil.Bubble(t, what, func(t *testing.T) {
				w := newWorld(t)
				c.make(w)
				w.aged(w.path)
				d := w.open()
				was := d.Table().Tenant("a").Clients
				gone := make(chan time.Time, 1)
				d.OnChange(func(now *Table) {
					if a := now.Tenant("a"); a == nil || !a.Clients.Same(was) {
						select {
						case gone <- time.Now():
						default:
						}
					}
				})
				testutil.Start(t, d.Run)
				time.Sleep(time.Minute + turn*lookEvery + time.Millisecond) // at rest, and just after a look
				d.looking.Lock()
				testutil.Holds(t, d.entries["a"].stamp != nil, "it is not at rest")
				d.looking.Unlock()
				began := time.Now()
				testutil.NoError(t, c.change(w, filepath.Join(w.path, "a")))
				select {
				case at := <-gone:
					took := at.Sub(began)
					testutil.Holds(t, took <= filesEvery*lookEvery && took <= bound, "it took %v", took)
				case <-time.After(bound):
					t.Error("it is served as before")
				}
			})
		}
	}
}

func (w *world) plain() { w.tenant("a", "a.example") }

// volume has a tenant as a mounted Secret has it: its files are links that lead
// through one that is swapped. In a volumeOfAll, the tenant itself is one.
func (w *world) volume() {
	w.t.Helper()
	w.tenant("a/..1", "a.example")
	folder := filepath.Join(w.path, "a")
	err := w.swap(folder, "..1")
	for _, file := range []string{AgentsCAFile, ClientsCAFile, SettingsFile} {
		err = errors.Join(err, os.Symlink("..data/"+file, filepath.Join(folder, file)))
	}
	if err != nil {
		w.t.Skip(err)
	}
}

func (w *world) volumeOfAll() {
	w.t.Helper()
	w.tenant("..1/a", "a.example")
	if err := errors.Join(w.swap(w.path, "..1"), os.Symlink("..data/a", filepath.Join(w.path, "a"))); err != nil {
		w.t.Skip(err)
	}
}

// swap has a volume's link lead to a version.
func (w *world) swap(folder, version string) error {
	next, now := filepath.Join(folder, "..next"), filepath.Join(folder, "..data")
	return errors.Join(os.Symlink(version, next), os.Rename(next, now))
}

// In as many looks as a round has, each tenant's files are looked at once, and in each look
// those of about as many tenants.
func TestEachLookIsAtItsPartOfTheFiles(t *testing.T) {
	var d Dir
	seen := make(map[*entry]int)
	for range 900 {
		seen[&entry{phase: rand.N(rereadEvery)}] = 0
	}
	for range filesEvery {
		d.looks++
		n := 0
		for e := range seen {
			if d.due(e) {
				seen[e]++
				n++
			}
		}
		testutil.Holds(t, n >= 200 && n <= 400, // seven standard deviations
			"a look is at the files of %d of %d tenants", n, len(seen))
	}
	for _, n := range seen {
		testutil.Equal(t, n, 1, "how often a round looks at the files of a tenant")
	}
}
