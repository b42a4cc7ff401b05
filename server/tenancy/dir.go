package tenancy

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
)

const (
	// lookEvery is how often the folders are looked at. What is gone must be
	// gone twice, so a tenant that is removed is cut within two looks.
	lookEvery = 2 * time.Second

	// rereadEvery is how often a folder is read although it looks unchanged:
	// tools can keep a file's size and time.
	rereadEvery = time.Minute

	// maxTenants bounds how many folders are followed: well above what one
	// process can serve.
	maxTenants = 20000

	// maxRefused bounds how many names of tenants that are gone are remembered.
	// Beyond it, names of nobody are refused altogether: to forget one would let
	// its peers fall through.
	maxRefused = 100000
)

// Dir follows a folder that has a folder for each tenant. Make it with Open and
// keep Run running. All methods may be called from any goroutine.
type Dir struct {
	path string
	log  logrus.FieldLogger

	table atomic.Pointer[Table]

	looking sync.Mutex // held while looking; guards what follows
	entries map[string]*entry
	served  map[string]struct{} // all server names that ever were a tenant's
	full    bool                // served has more names than are remembered; as logged
	fault   string              // why the folders could not be listed, as logged
	changed func(*Table)
}

// entry is one tenant's folder.
type entry struct {
	stamp stamp
	read  time.Time
	gone  int // looks since it was there

	parsed  *Tenant // the newest reading; nil: none
	err     error   // of it
	serving *Tenant // nil: broken
	last    *Tenant // that was served
	names   []string
	since   time.Time
	said    string // as logged
}

// Open reads all folders. It fails only if they cannot be listed; tenants that
// are broken are logged, and in States.
func Open(path string, log logrus.FieldLogger) (*Dir, error) {
	d := &Dir{path: path, log: log, entries: make(map[string]*entry), served: make(map[string]struct{})}
	names, err := d.list()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, bare(err))
	}
	d.update(names)
	return d, nil
}

// Table is what there is now.
func (d *Dir) Table() *Table { return d.table.Load() }

// OnChange has f called with each new Table, in their order, after it is in
// force. It is called at once with the present one. There can be one f.
func (d *Dir) OnChange(f func(*Table)) {
	d.looking.Lock()
	defer d.looking.Unlock()
	d.changed = f
	f(d.table.Load())
}

// Run follows the folders until ctx ends.
func (d *Dir) Run(ctx context.Context) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			d.Look()
		}
	}
}

// Look looks at all folders now. What has changed is in force when it returns,
// except for what is gone, which must be gone at the next look too.
func (d *Dir) Look() {
	d.looking.Lock()
	defer d.looking.Unlock()
	names, err := d.list()
	if err != nil {
		if text := err.Error(); text != d.fault {
			d.fault = text
			d.log.WithError(err).Error("the tenants' folders cannot be listed; all tenants are served as before")
		}
		return
	}
	if d.fault != "" {
		d.fault = ""
		d.log.Info("the tenants' folders can be listed again")
	}
	d.update(names)
}

// list returns the names of the tenants' folders.
func (d *Dir) list() ([]string, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") && (e.IsDir() || e.Type()&fs.ModeSymlink != 0) {
			names = append(names, e.Name())
		}
	}
	if len(names) > maxTenants {
		return nil, fmt.Errorf("there are %d tenants, and at most %d are served", len(names), maxTenants)
	}
	return names, nil
}

// update reads what has changed and puts a new Table into force.
func (d *Dir) update(names []string) {
	now := time.Now()
	listed := make(map[string]bool, len(names))
	news := d.table.Load() == nil
	for _, name := range names {
		listed[name] = true
		e := d.entries[name]
		if e == nil {
			e = &entry{since: now}
			d.entries[name] = e
		}
		news = d.look(name, e, now) || news
	}
	for name, e := range d.entries {
		if listed[name] {
			continue
		}
		if e.gone++; e.gone > 1 {
			delete(d.entries, name)
			d.log.WithField("tenant", name).Info("the tenant was removed")
			news = true
		}
	}
	if d.settle(now) || news {
		d.publish()
	}
}

// look reads a folder if it may have changed; true is news.
func (d *Dir) look(name string, e *entry, now time.Time) (news bool) {
	f, err := openFolder(filepath.Join(d.path, name))
	if err != nil {
		return e.failed(err)
	}
	defer f.close()
	before, err := f.stamp(now)
	if err != nil {
		return e.failed(err)
	}
	if e.gone == 0 && before.same(e.stamp) && now.Sub(e.read) < rereadEvery {
		return false
	}
	tenant, err := parse(name, f.read)
	after, listErr := f.stamp(now)
	if listErr != nil {
		after = stamp{}
	}
	return e.learn(tenant, err, before, after, now)
}

// learn takes in a reading, made between two stamps. If they differ, it may be of
// half a change, and nobody is cut for that: what is served is served as it was
// until a look finds the folder at rest.
func (e *entry) learn(tenant *Tenant, err error, before, after stamp, now time.Time) (news bool) {
	if err == nil {
		err = tenant.opened(e.last)
	}
	e.stamp, e.read = stamp{}, now
	whole := before.same(after)
	if !whole && e.serving != nil {
		return false
	}
	if whole && !after.young && !unread(err) {
		e.stamp = after // only what was read whole need not be read again
	}
	e.names = tenant.ServerNames
	if err != nil {
		return e.failed(err)
	}
	news = e.err != nil || e.parsed == nil || e.parsed.digest != tenant.digest
	switch e.gone, e.err = 0, nil; {
	case e.serving != nil && e.serving.digest == tenant.digest:
		e.parsed = e.serving
	case news:
		e.parsed = tenant
	}
	return news
}

// unread says whether err tells that a file could not be read, rather than that
// it is wrong.
func unread(err error) bool {
	var errno interface{ Temporary() bool } // syscall.Errno
	return err != nil && (errors.As(err, &errno) || errors.Is(err, fs.ErrNotExist))
}

// failed notes why the folder cannot be used. One that is served goes on as it
// was, unless it is withdrawn, and is so the next time too.
func (e *entry) failed(err error) (news bool) {
	news = e.err == nil || e.err.Error() != err.Error()
	e.err, e.parsed = err, nil
	if !withdrawn(err) {
		e.gone = 0
		return news
	}
	if e.gone++; e.gone > 1 && e.serving != nil {
		e.serving = nil
		return true
	}
	return news
}

// withdrawn says whether err tells that what makes a folder a tenant is not
// there: whoever removes a CA means it. A file that tenant.yaml names may be yet
// to be written.
func withdrawn(err error) bool {
	var field *FieldError
	return errors.Is(err, fs.ErrNotExist) && (!errors.As(err, &field) || slices.Contains([]string{SpecFile, ClientsCAFile, AgentsCAFile}, field.File))
}

// settle decides which readings are served: those whose server names are no
// other tenant's. Who has a name keeps it.
func (d *Dir) settle(now time.Time) (news bool) {
	owner := make(map[string]string)
	for name, e := range d.entries {
		if e.serving != nil {
			for _, server := range e.serving.ServerNames {
				owner[server] = name
			}
		}
	}
	for again := true; again; { // a name that one gives up another may take
		again = false
		for _, name := range slices.Sorted(maps.Keys(d.entries)) {
			e := d.entries[name]
			if e.parsed == nil || e.parsed == e.serving {
				continue
			}
			if err := taken(name, e.parsed, owner); err != nil {
				news = news || e.err == nil || e.err.Error() != err.Error()
				e.err = err
				continue
			}
			if e.serving != nil {
				for _, server := range e.serving.ServerNames {
					delete(owner, server)
				}
			}
			for _, server := range e.parsed.ServerNames {
				owner[server] = name
				d.served[server] = struct{}{}
			}
			e.serving, e.last, e.err, e.since = e.parsed, e.parsed, nil, now
			again, news = true, true
		}
	}
	for name, e := range d.entries {
		d.tell(name, e)
	}
	return news
}

// taken is an error if another tenant has one of t's names.
func taken(name string, t *Tenant, owner map[string]string) error {
	for i, server := range t.ServerNames {
		if other, ok := owner[server]; ok && other != name {
			return &FieldError{File: SpecFile, Field: fmt.Sprintf("serverNames[%d]", i), Err: &takenError{server, other}}
		}
	}
	return nil
}

// tell logs what has become of a tenant, once.
func (d *Dir) tell(name string, e *entry) {
	said := fmt.Sprint(e.state(), e.err)
	if e.serving != nil && e.err == nil {
		said = fmt.Sprintf("%x", e.serving.digest)
	}
	if said == e.said {
		return
	}
	first := e.said == ""
	e.said = said
	log := d.log.WithField("tenant", name)
	switch {
	case e.serving != nil && e.err == nil && first:
		log.Info("the tenant is served")
	case e.serving != nil && e.err == nil:
		log.Info("the tenant has changed")
	case e.serving != nil:
		log.WithError(e.err).Warn("the tenant's folder cannot be used as it is now; it is served as before")
	default:
		log.WithError(e.err).Error("the tenant is refused: its folder cannot be used")
	}
}

func (e *entry) state() string {
	switch {
	case e.serving == nil:
		return StateBroken
	case e.err != nil:
		return StateStale
	default:
		return StateServing
	}
}

// publish puts a new Table into force.
func (d *Dir) publish() {
	t := &Table{
		byName: make(map[string]*Tenant), refused: make(map[string]struct{}), tenants: make(map[string]*Tenant, len(d.entries)),
		closed: len(d.served) > maxRefused,
	}
	for _, name := range slices.Sorted(maps.Keys(d.entries)) {
		e := d.entries[name]
		status := Status{Name: name, State: e.state(), Since: e.since, ServerNames: e.names, Tenant: e.serving}
		if e.err != nil {
			status.Error, status.Told = e.err.Error(), told(e.err)
		}
		if e.serving != nil {
			t.tenants[name] = e.serving
			status.ServerNames = e.serving.ServerNames
			for _, server := range e.serving.ServerNames {
				t.byName[server] = e.serving
			}
		}
		t.states = append(t.states, status)
		for _, server := range e.names {
			t.refused[server] = struct{}{} // those that are served are found first
		}
	}
	t.readers = readersOf(t.tenants)
	if !t.closed {
		maps.Copy(t.refused, d.served)
	}
	if t.closed && !d.full {
		d.full = true
		d.log.Errorf("more than %d server names were tenants' since the server started: from now on peers that ask for any other name are refused, until it is restarted", maxRefused)
	}
	d.table.Store(t)
	if d.changed != nil {
		d.changed(t)
	}
}
