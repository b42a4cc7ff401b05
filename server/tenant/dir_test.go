package tenant

import (
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/admin"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// world is a folder of tenants.
type world struct {
	t    *testing.T
	path string
	ca   *pki.CA
	log  *logrus.Logger
	said *logtest.Hook
}

// newWorld has whole tenants of these names, each with its own server name.
func newWorld(t *testing.T, tenants ...string) *world {
	log, hook := logtest.NewNullLogger()
	w := &world{t: t, path: t.TempDir(), ca: newCA(t), log: log, said: hook}
	for _, name := range tenants {
		w.tenant(name, name+".example")
	}
	return w
}

// newDirOf is the directory of a world with one tenant, a.
func newDirOf(t *testing.T) (*world, *Dir) {
	t.Helper()
	w := newWorld(t, "a")
	return w, w.open()
}

func newCA(t *testing.T) *pki.CA { return testutil.Must(pki.NewCA("ca"))(t) }

func (w *world) open() *Dir {
	w.t.Helper()
	return testutil.Must(Open(w.path, w.log))(w.t)
}

// put writes a tenant's file, as editors do.
func (w *world) put(tenant, file, text string) {
	w.t.Helper()
	folder := filepath.Join(w.path, tenant)
	testutil.NoError(w.t, os.MkdirAll(folder, 0o755))
	testutil.NoError(w.t, os.WriteFile(filepath.Join(folder, file), []byte(text), 0o644))
}

// tenant makes a whole one.
func (w *world) tenant(name string, serverNames ...string) {
	w.t.Helper()
	w.put(name, AgentsCAFile, string(w.ca.CertPEM))
	w.put(name, ClientsCAFile, string(w.ca.CertPEM))
	w.put(name, SettingsFile, "serverNames: ["+strings.Join(serverNames, ", ")+"]")
}

// find is the name of the tenant of a server name; "refused", or "own".
func find(d *Dir, serverName string) string {
	switch tenant, known := d.Table().Find(serverName); {
	case tenant != nil:
		return tenant.Name
	case known:
		return "refused"
	default:
		return "own"
	}
}

func (w *world) finds(d *Dir, serverName, want string) {
	w.t.Helper()
	testutil.Equal(w.t, find(d, serverName), want, "%q leads to", serverName)
}

func (w *world) state(d *Dir, name string) Status {
	s, _ := d.Table().State(name)
	return s
}

// is fails unless a tenant is in a state, for a reason that begins so.
func (w *world) is(d *Dir, name, state, why string) {
	w.t.Helper()
	if s := w.state(d, name); s.State != state || !strings.HasPrefix(s.Error, why) || state == StateServing && s.Error != "" {
		w.t.Errorf("%s is %+v; want %s, since %q", name, s, state, why)
	}
}

func TestServerNamesLeadToTheirTenants(t *testing.T) {
	w := newWorld(t)
	w.tenant("a", "a.example", "A2.Example.")
	w.tenant("b", "b.example")
	w.put(".hidden", SettingsFile, "")
	d := w.open()
	for name, want := range map[string]string{
		"a.example": "a", "A.EXAMPLE": "a", "a.example.": "a", "a2.example": "a", "b.example": "b", "": "own", "c.example": "own", "x.a.example": "own",
	} {
		w.finds(d, name, want)
	}
	testutil.Equal(t, len(d.Table().States()), 2, "tenants")
}

func TestTenantsComeChangeAndGo(t *testing.T) {
	w, d := newDirOf(t)
	var told []*Table
	d.OnChange(func(t *Table) { told = append(told, t) })
	first := d.Table().Tenant("a")

	w.tenant("b", "b.example")
	d.Look()
	w.finds(d, "b.example", "b")
	testutil.Equal(t, d.Table().Tenant("a"), first, "a tenant that has not changed")

	w.put("b", SettingsFile, "serverNames: [b2.example]\nbounds: {connections: 3}")
	d.Look()
	w.finds(d, "b2.example", "b")
	w.finds(d, "b.example", "refused")
	testutil.Equal(t, d.Table().Tenant("b").Bounds.Connections, 3, "the bound of a change")

	testutil.NoError(t, os.RemoveAll(filepath.Join(w.path, "b")))
	d.Look()
	w.finds(d, "b2.example", "b") // a file system may blink
	d.Look()
	w.finds(d, "b2.example", "refused")
	w.finds(d, "b.example", "refused")
	testutil.Equal(t, len(told), 4, "tables were told")
	d.Look()
	testutil.Equal(t, len(told), 4, "a table was told without news")
}

func TestOneThatIsBrokenHarmsNobodyElse(t *testing.T) {
	w := newWorld(t, "a", "bad")
	w.put("bad", ClientsCAFile, "nothing")
	w.tenant("Wrong", "wrong.example")
	d := w.open()
	w.finds(d, "a.example", "a")
	w.finds(d, "bad.example", "refused")
	w.is(d, "bad", StateBroken, "clients-ca.crt: no PEM certificate in it")
	w.is(d, "Wrong", StateBroken, `"Wrong" is no name for a tenant`)
	w.put("bad", ClientsCAFile, string(w.ca.CertPEM))
	d.Look()
	w.finds(d, "bad.example", "bad")
}

func TestAChangeThatIsBrokenLeavesWhatWas(t *testing.T) {
	w, d := newDirOf(t)
	was := d.Table().Tenant("a")
	w.put("a", AgentsCAFile, "half of a fi")
	d.Look()
	w.is(d, "a", StateStale, "agents-ca.crt: ")
	served := d.Table().Tenant("a")
	w.put("a", AgentsCAFile, string(w.ca.CertPEM))
	d.Look()
	w.is(d, "a", StateServing, "")
	testutil.Holds(t, served == was && d.Table().Tenant("a") == was, "it is another")
}

// A reading of what changes meanwhile is of no state that was meant.
func TestAReadingOfHalfAChangeIsNotServed(t *testing.T) {
	w, d := newDirOf(t)
	f := testutil.Must(openFolder(filepath.Join(w.path, "a")))(t)
	defer f.close()
	stamped := func() stamp { return testutil.Must(f.stamp(time.Now()))(t) }
	other := string(newCA(t).CertPEM)
	w.put("a", AgentsCAFile, other)
	before := stamped()
	half, err := parse("a", f.read)
	w.put("a", ClientsCAFile, other+other)
	e, was := d.entries["a"], d.Table().Tenant("a")
	testutil.Holds(t, !e.learn(half, err, before, stamped(), time.Now()) && e.parsed == was && e.stamp == nil,
		"half a change is news: %+v", e)
	d.Look()
	now := d.Table().Tenant("a")
	testutil.Holds(t, now != was && now.Clients.Same(now.Agents), "the next look does not find all of it")
}

func TestABundleThatIsCutShortIsNoSmallerBundle(t *testing.T) {
	one, two := string(newCA(t).CertPEM), string(newCA(t).CertPEM)
	for _, test := range []struct {
		text string
		want string
	}{
		{one + two, ""},
		{one + two[:len(two)/2], "ca: not all that begins with -----BEGIN is a whole PEM block"},
		{one[:len(one)/2], "ca: not all that begins with -----BEGIN is a whole PEM block"},
		{"nothing", "ca: no PEM certificate in it"},
	} {
		_, err := new(Spec).parseCAs("ca", inMemory{"ca": test.text}.read)
		testutil.Holds(t, (test.want != "" || err == nil) &&
			(test.want == "" || err != nil && strings.HasPrefix(err.Error(), test.want)), "got %v, want %q", err, test.want)
	}
}

func TestATenantWithoutItsCAIsRefused(t *testing.T) {
	testutil.EachOf(t, []string{AgentsCAFile, ClientsCAFile, SettingsFile}, func(t *testing.T, file string) {
		w, d := newDirOf(t)
		served := w.state(d, "a").Since
		testutil.NoError(t, os.Remove(filepath.Join(w.path, "a", file)))
		d.Look()
		w.finds(d, "a.example", "a")
		d.Look()
		since := w.state(d, "a").Since
		testutil.Holds(t, since.After(served), "it is refused since %v, and was served since %v", since, served)
		w.finds(d, "a.example", "refused")
		w.is(d, "a", StateBroken, file+": ")
		w.tenant("a", "a.example")
		d.Look()
		w.finds(d, "a.example", "a")
	})
}

const tokensSpec = "serverNames: [a.example]\ntokens: {kubeconfig: kubeconfig, namespace: ns, serviceAccount: sa, audience: u}\n"

// With tokens, agents need no CA; but to lose it opens nothing by itself.
func TestTheAgentsCAIsNotLostUnnoticed(t *testing.T) {
	w := newWorld(t, "a")
	w.put("a", SettingsFile, tokensSpec)
	w.put("a", "kubeconfig", kubeconfigOf("server: 'https://api'", "token: x"))
	d := w.open()
	was := d.Table().Tenant("a")
	testutil.NoError(t, os.Remove(filepath.Join(w.path, "a", AgentsCAFile)))
	d.Look()
	w.is(d, "a", StateStale, "")
	testutil.Equal(t, d.Table().Tenant("a"), was, "the tenant")
	for range 3 {
		d.Look()
		w.finds(d, "a.example", "refused")
	}
	w.is(d, "a", StateBroken, "agents-ca.crt: file does not exist; to let agents in by token alone")
	w.put("a", SettingsFile, tokensSpec+"# by token alone\n")
	d.Look()
	w.finds(d, "a.example", "a")
	testutil.Holds(t, d.Table().Tenant("a").Agents == nil, "it has CAs of agents")
}

// A file that tenant.yaml newly names may come after it.
func TestWhatIsAddedAndMissingRemovesNobody(t *testing.T) {
	w, d := newDirOf(t)
	w.put("a", SettingsFile, tokensSpec)
	for range 3 {
		d.Look()
		w.finds(d, "a.example", "a")
	}
	w.is(d, "a", StateStale, "kubeconfig: ")
	w.put("a", "kubeconfig", kubeconfigOf("server: 'https://api'", "token: x"))
	d.Look()
	s := w.state(d, "a")
	testutil.Holds(t, s.State == StateServing && s.Spec.Tokens != nil, "got %+v", s)
}

// What cannot be read just now was not removed.
func TestErrorsOfTheFileSystemRemoveNobody(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads everything")
	}
	if runtime.GOOS == "windows" {
		t.Skip("Windows has other permissions")
	}
	w, d := newDirOf(t)
	for _, path := range []string{filepath.Join(w.path, "a", ClientsCAFile), filepath.Join(w.path, "a"), w.path} {
		info := testutil.Must(os.Stat(path))(t)
		testutil.NoError(t, os.Chmod(path, 0))
		for range 4 {
			d.Look()
		}
		w.finds(d, "a.example", "a")
		testutil.NoError(t, os.Chmod(path, info.Mode()))
		d.Look()
		w.is(d, "a", StateServing, "")
	}
}

// A link that leads nowhere in a way that is no clean absence keeps the tenant,
// for root too.
func TestALinkInCirclesRemovesNobody(t *testing.T) {
	w, d := newDirOf(t)
	file := filepath.Join(w.path, "a", ClientsCAFile)
	testutil.NoError(t, os.Remove(file))
	if err := os.Symlink(ClientsCAFile, file); err != nil {
		t.Skip(err)
	}
	for range 4 {
		d.Look()
	}
	w.finds(d, "a.example", "a")
	w.is(d, "a", StateStale, "")
}

func TestNothingOutsideOfTheFolderIsRead(t *testing.T) {
	w := newWorld(t, "a")
	outside := filepath.Join(t.TempDir(), "ca")
	testutil.NoError(t, os.WriteFile(outside, w.ca.CertPEM, 0o644))
	file := filepath.Join(w.path, "a", ClientsCAFile)
	testutil.NoError(t, os.Remove(file))
	if err := os.Symlink(outside, file); err != nil {
		t.Skip(err)
	}
	d := w.open()
	w.finds(d, "a.example", "refused")
}

func TestWhoHasAServerNameKeepsIt(t *testing.T) {
	w := newWorld(t)
	w.tenant("b", "one.example")
	d := w.open()
	w.tenant("a", "one.example", "two.example") // first by name, second to come
	d.Look()
	w.finds(d, "one.example", "b")
	w.finds(d, "two.example", "refused")
	w.is(d, "a", StateBroken, `tenant.yaml: serverNames[0]: one.example is the name of the tenant "b" already`)
	w.tenant("b", "three.example")
	d.Look()
	w.finds(d, "one.example", "a")
	w.finds(d, "three.example", "b")
}

func TestOfTwoThatComeTogetherOneHasAServerName(t *testing.T) {
	w := newWorld(t)
	w.tenant("a", "one.example")
	w.tenant("b", "one.example", "two.example")
	d := w.open()
	w.finds(d, "one.example", "a")
	w.finds(d, "two.example", "refused")
	w.is(d, "b", StateBroken, `tenant.yaml: serverNames[0]: one.example is the name of the tenant "a" already`)
}

// crowd is a source of more tenants than are served.
type crowd struct{ source }

func (crowd) list() ([]string, error) { return make([]string, maxTenants+1), nil }

func TestTooManyTenantsRemoveNobody(t *testing.T) {
	w, d := newDirOf(t)
	d.source = crowd{d.source}
	d.Look()
	w.finds(d, "a.example", "a")
	testutil.Equal(t, len(d.Table().States()), 1, "tenants that are known")
}

// Files of the future, as after the clock was set back, are not read again at each look.
func TestTheClockWasSetBack(t *testing.T) {
	w := newWorld(t, "a")
	folder := filepath.Join(w.path, "a")
	f := testutil.Must(openFolder(folder))(t)
	defer f.close()
	written := testutil.Must(os.Stat(filepath.Join(folder, SettingsFile)))(t).ModTime()
	testutil.Holds(t, !testutil.Must(f.stamp(written))(t).holds(0), "a file that was just written is taken for settled")
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		s := testutil.Must(f.stamp(written.Add(by)))(t).(folderStamp)
		testutil.Holds(t, s.holds(0) && s.all, "%v after it was written: %+v", by, s)
	}
}

// Files that do not count, as editors leave behind, hide no change of those that do, however many
// there are.
func TestManyDotFilesHideNoChange(t *testing.T) {
	w := newWorld(t, "a")
	for i := range 8 * maxFiles {
		w.put("a", "."+strconv.Itoa(i), "")
	}
	folder := filepath.Join(w.path, "a")
	w.aged(folder)
	d := w.open()
	// In which order they are listed is up to the file system, so the change may be in the part
	// that is read. The stamp tells in any order that this is not all.
	f := testutil.Must(openFolder(folder))(t)
	defer f.close()
	testutil.Holds(t, !testutil.Must(f.stamp(time.Now()))(t).holds(0), "a part of the folder is taken for all of it")
	w.put("a", ".new", "serverNames: [b.example]")
	testutil.NoError(t, os.Rename(filepath.Join(folder, ".new"), filepath.Join(folder, SettingsFile)))
	d.entries["a"].read = time.Now() // or else its turn to be read again may have come
	d.Look()
	w.finds(d, "b.example", "a")
}

// With more names than can be remembered, none falls through.
func TestTooManyNamesAreSaidOnce(t *testing.T) {
	w, d := newDirOf(t)
	for i := range maxRefused {
		d.served[strconv.Itoa(i)] = ""
	}
	w.said.Reset()
	for _, name := range []string{"b.example", "c.example"} {
		w.tenant("a", name)
		d.Look()
		w.finds(d, name, "a")
		w.finds(d, "nobody.example", "refused")
	}
	lines := testutil.Lines(w.said, "", logrus.ErrorLevel)
	testutil.Holds(t, lines == 1 && d.Table().Closed() && len(d.served) == maxRefused+1,
		"%d lines; closed: %v; %d names are remembered", lines, d.Table().Closed(), len(d.served))
}

func TestFailuresAreLoggedOnce(t *testing.T) {
	w := newWorld(t, "a")
	w.put("a", SettingsFile, "x: 1")
	d := w.open()
	for range 3 {
		d.Look()
	}
	n := len(w.said.AllEntries())
	testutil.Holds(t, n == 1 && w.said.LastEntry().Data["tenant"] == "a", "%d lines", n)
}

func TestOpenNamesTheFolderThatIsMissing(t *testing.T) {
	_, err := Open("/nowhere/tenants", logrus.New())
	testutil.Holds(t, err != nil && strings.HasPrefix(err.Error(), "/nowhere/tenants: "), "got %v", err)
}

func TestTheServersCertificateMustBeForTheNames(t *testing.T) {
	w := newWorld(t)
	w.tenant("a", "a.example", "b.example")
	for _, test := range []struct {
		names []string
		want  string
	}{
		{[]string{"a.example"}, "server.crt: the certificate is not for b.example"},
		{[]string{"a.example", "b.example"}, ""},
		{[]string{"*.example"}, ""},
	} {
		pair := testutil.Must(w.ca.Issue(pki.Leaf{CommonName: "s", DNS: test.names, Server: true}))(t)
		w.put("a", CertFile, string(pair.CertPEM))
		w.put("a", KeyFile, string(pair.KeyPEM))
		tenant, err := Load("a", filepath.Join(w.path, "a"))
		testutil.Holds(t, (test.want != "" || err == nil && tenant.Cert != nil) &&
			(test.want == "" || err != nil && strings.HasPrefix(err.Error(), test.want)), "%q: got %v", test.names, err)
	}
	cert := w.open().Table().Tenant("a").Cert
	testutil.Holds(t, cert != nil && cert.Leaf == nil, "a server keeps no certificate, or the parsed one too: %+v", cert)
	testutil.NoError(t, os.Remove(filepath.Join(w.path, "a", KeyFile)))
	_, err := Load("a", filepath.Join(w.path, "a"))
	testutil.Holds(t, err != nil && err.Error() == "server.crt: a certificate without server.key", "got %v", err)
}

func TestTrustIsByChainAndNotByFile(t *testing.T) {
	one, two := newCA(t), newCA(t)
	cas := func(cas ...*pki.CA) *CAs {
		var text []byte
		for _, ca := range cas {
			text = append(text, ca.CertPEM...)
		}
		return testutil.Must(new(Spec).parseCAs("ca", inMemory{"ca": string(text)}.read))(t)
	}
	leaf := func(ca *pki.CA, l pki.Leaf) []*x509.Certificate {
		return []*x509.Certificate{testutil.Must(ca.Issue(l))(t).TLS().Leaf}
	}
	client := leaf(one, pki.Leaf{CommonName: "c", Client: true})
	switch {
	case cas(one).Recheck(client) != nil, cas(two, one).Recheck(client) != nil:
		t.Error("its own CA does not trust it")
	case cas(two).Recheck(client) == nil:
		t.Error("another CA of the same name trusts it")
	case cas(one).Recheck(nil) == nil:
		t.Error("no certificate is trusted")
	case cas(one).Recheck(leaf(one, pki.Leaf{CommonName: "s", DNS: []string{"s"}, Server: true})) == nil:
		t.Error("a server's certificate is trusted as a client's")
	case !cas(one, two).Same(cas(two, one, one)) || cas(one).Same(cas(two)):
		t.Error("the same certificates in another order are not the same")
	}
	short := leaf(one, pki.Leaf{CommonName: "c", Client: true, Lifetime: time.Nanosecond})
	if !slices.ContainsFunc(short, func(c *x509.Certificate) bool { return c.NotAfter.Before(time.Now()) }) {
		t.Skip("it has not expired yet")
	}
	testutil.Holds(t, cas(one).Recheck(short) == nil, "one that has expired since counts as of another CA")
}

// A folder at rest is not opened at each look, and whatever changes in it is seen,
// though all that is in it looks old.
func TestAFolderAtRestIsNotOpened(t *testing.T) {
	const name = "a"
	old := time.Now().Add(-time.Hour)
	age := func(path string) {
		t.Helper()
		testutil.NoError(t, os.Chtimes(path, time.Time{}, old))
	}
	testutil.Each(t, map[string]func(w *world, folder string) error{
		"a file was written": func(w *world, folder string) error {
			w.put(name, SettingsFile, "serverNames: [b.example]")
			return nil
		},
		"a file was written long ago": func(w *world, folder string) error {
			w.put(name, SettingsFile, "serverNames: [b.example]")
			return os.Chtimes(filepath.Join(folder, SettingsFile), time.Time{}, old.Add(time.Second))
		},
		"a file was replaced by one of the same size and age": func(w *world, folder string) error {
			w.put(name, ".new", "serverNames: [b.example]")
			age(filepath.Join(folder, ".new"))
			defer age(folder)
			return os.Rename(filepath.Join(folder, ".new"), filepath.Join(folder, SettingsFile))
		},
		"a file came": func(w *world, folder string) error {
			w.put(name, "kubeconfig", "")
			age(filepath.Join(folder, "kubeconfig"))
			return nil
		},
		"a file went": func(w *world, folder string) error {
			defer age(folder)
			return os.Remove(filepath.Join(folder, AgentsCAFile))
		},
		"its modes changed": func(w *world, folder string) error { return os.Chmod(folder, 0o700) },
		"it went":           func(w *world, folder string) error { return os.Rename(folder, folder+"2") },
		"it is another": func(w *world, folder string) error {
			w.tenant("b", "b.example")
			w.aged(filepath.Join(w.path, "b"))
			return errors.Join(os.Rename(folder, folder+"2"), os.Rename(filepath.Join(w.path, "b"), folder))
		},
	}, func(t *testing.T, change func(w *world, folder string) error) {
		w := newWorld(t)
		w.tenant(name, "a.example")
		folder := filepath.Join(w.path, name)
		w.aged(folder)
		d := w.open()
		read := d.entries[name].stamp
		testutil.Requires(t, read != nil && d.source.still(name, read, true), "it is opened though nothing has changed")
		testutil.NoError(t, change(w, folder))
		testutil.Holds(t, !d.source.still(name, read, true), "it is not opened")
	})
}

// A link that leads nowhere may lead somewhere at the next look, of which the
// folder that it is in shows nothing.
func TestALinkThatLeadsNowhereIsFollowed(t *testing.T) {
	w := newWorld(t, "a")
	folder := filepath.Join(w.path, "a")
	testutil.NoError(t, errors.Join(os.MkdirAll(filepath.Join(folder, "sub", "sub"), 0o755), os.Symlink("sub/sub/key", filepath.Join(folder, KeyFile))))
	old := time.Now().Add(-time.Hour)
	for _, file := range []string{AgentsCAFile, ClientsCAFile, SettingsFile, "sub", ""} {
		testutil.NoError(t, os.Chtimes(filepath.Join(folder, file), time.Time{}, old))
	}
	d := w.open()
	w.is(d, "a", StateServing, "")
	w.put("a", "sub/sub/key", "no certificate is with it")
	d.Look()
	w.is(d, "a", StateStale, "")
}

// Most tenants have one CA for both sides, which is kept once.
func TestOneCAForBothSidesIsKeptOnce(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.put("b", AgentsCAFile, string(newCA(t).CertPEM))
	d := w.open()
	a := d.Table().Tenant("a")
	testutil.Holds(t, a.Agents == a.Clients, "the same CA is there twice")
	b := d.Table().Tenant("b")
	testutil.Holds(t, b.Agents != b.Clients, "another CA is taken for the same")
}

// Folders that have all changed in one look are not all read again in one.
func TestRereadsAreSpread(t *testing.T) {
	const crowd = 40
	w := newWorld(t)
	for i := range crowd {
		w.tenant(fmt.Sprint(i), fmt.Sprintf("t%d.example", i))
	}
	d := w.open()
	for _, what := range []string{"at first", "after a change of all"} {
		var reads []time.Time
		for name, e := range d.entries {
			testutil.Between(t, time.Since(e.read), 0, 2*rereadEvery, "%s: it counts as read, after", name)
			reads = append(reads, e.read)
		}
		slices.SortFunc(reads, time.Time.Compare)
		testutil.AtLeast(t, reads[crowd-1].Sub(reads[0]), rereadEvery/4, "%s: %d folders are due within", what, crowd)
		for i := range crowd {
			w.put(fmt.Sprint(i), SettingsFile, fmt.Sprintf("serverNames: [changed%d.example]", i))
		}
		d.Look()
	}
}

// What was read again and has not changed is not parsed again, which costs a
// multiple: every ten minutes all of a thousand tenants are read. Whatever has changed is,
// and so is what cannot be read.
func TestARereadParsesOnlyWhatHasChanged(t *testing.T) {
	w := newWorld(t, "a")
	tenant := w.open().Table().Tenant("a")
	f := testutil.Must(openFolder(filepath.Join(w.path, "a")))(t)
	defer f.close()
	testutil.Holds(t, tenant.unchanged(f.read), "files at rest count as changed")
	testutil.Holds(t, !(*Spec)(nil).unchanged(f.read), "a tenant that was never read counts as unchanged")
	for _, file := range []string{SettingsFile, ClientsCAFile, AgentsCAFile, CertFile, KeyFile, ReaderFile} {
		for what, outcome := range map[string]struct {
			data []byte
			err  error
		}{"has changed": {[]byte("else"), nil}, "is unreadable": {nil, fs.ErrPermission}} {
			now := func(name string) ([]byte, error) {
				if name == file {
					return outcome.data, outcome.err
				}
				return f.read(name)
			}
			testutil.Holds(t, !tenant.unchanged(now), "%s %s, and the tenant counts as unchanged", file, what)
		}
	}
	parse := testing.AllocsPerRun(10, func() { _, _ = parse("a", f.read) })
	reread := testing.AllocsPerRun(10, func() { tenant.unchanged(f.read) })
	testutil.AtMost(t, reread, parse/3, "allocations to read it again, beside %.0f to parse it", parse)
}

// The state of each tenant is found by its name, also of one that is broken.
func TestStatesAreFoundByName(t *testing.T) {
	w := newWorld(t)
	for _, name := range []string{"b", "a", "d"} {
		w.tenant(name, name+".example")
	}
	w.put("b", SettingsFile, "{")
	table := w.open().Table()
	for _, want := range table.States() {
		got, found := table.State(want.Name)
		testutil.Holds(t, found && got.Name == want.Name && got.State == want.State, "%s: %+v, %t", want.Name, got, found)
	}
	for _, name := range []string{"", "c", "e"} {
		got, found := table.State(name)
		testutil.Holds(t, !found, "%q: %+v", name, got)
	}
}

// flaky is a source that fails now and then.
type flaky struct {
	source
	opening, listing error
}

func (f *flaky) still(string, stamp, bool) bool { return false }

func (f *flaky) open(name string) (store, error) {
	if f.opening != nil {
		return nil, f.opening
	}
	s, err := f.source.open(name)
	return flakyStore{s, f.listing}, err
}

type flakyStore struct {
	store
	err error
}

func (s flakyStore) stamp(now time.Time) (stamp, error) {
	if s.err != nil {
		return nil, s.err
	}
	return s.store.stamp(now)
}

// A folder that could not be looked at for a moment is as it was at the next look.
func TestATransientErrorIsOverAtTheNextLook(t *testing.T) {
	testutil.Each(t, map[string]flaky{"open": {opening: syscall.EIO}, "list": {listing: syscall.EMFILE}}, func(t *testing.T, fails flaky) {
		w := newWorld(t, "a")
		w.aged(filepath.Join(w.path, "a"))
		d := w.open()
		good := d.source
		fails.source = good
		d.source = &fails
		d.Look()
		w.is(d, "a", StateStale, "")
		d.source = good
		d.Look()
		w.is(d, "a", StateServing, "")
	})
}

// restless is a source whose folders change while they are read.
type restless struct{ source }

func (restless) still(string, stamp, bool) bool { return false }

func (r restless) open(name string) (store, error) {
	s, err := r.source.open(name)
	return restlessStore{s, new(int)}, err
}

type restlessStore struct {
	store
	looks *int
}

func (s restlessStore) stamp(time.Time) (stamp, error) {
	*s.looks++
	return secretStamp(rune('a' + *s.looks)), nil
}

// listless is a source that lists nothing.
type listless struct{ source }

func (listless) list() ([]string, error) { return nil, nil }

// A tenant is removed once two looks in a row do not find it. One between them that does, at
// files that change while they are read, counts.
func TestOneThatIsBackIsNotGone(t *testing.T) {
	w, d := newDirOf(t)
	good := d.source
	for _, look := range []source{listless{good}, restless{good}, listless{good}, good} {
		d.source = look
		d.Look()
		w.finds(d, "a.example", "a")
	}
}

// A reader's token that was changed or removed is worth nothing any more,
// whatever else is wrong with the folder then.
func TestATokenIsRevokedThoughTheRestIsWrong(t *testing.T) {
	digest := func(text string) admin.TokenDigest { return testutil.Must(admin.ParseToken([]byte(text)))(t) }
	first, second := strings.Repeat("first", 8), strings.Repeat("second", 8)
	testutil.Each(t, map[string]func(w *world){
		"settings": func(w *world) { w.put("a", SettingsFile, "x: 1") },
		"CA":       func(w *world) { w.put("a", ClientsCAFile, "nothing") },
		"name":     func(w *world) { w.put("a", SettingsFile, "serverNames: [b.example]") },
	}, func(t *testing.T, spoil func(w *world)) {
		w := newWorld(t, "a", "b")
		w.put("a", ReaderFile, first)
		d := w.open()
		shows := func(when, token string, want bool) {
			t.Helper()
			got := d.Table().Reader(digest(token))
			testutil.Holds(t, got == map[bool]string{true: "a"}[want], "%s, %.6s shows %q", when, token, got)
			w.finds(d, "a.example", "a")
		}
		shows("at first", first, true)
		spoil(w)
		w.put("a", ReaderFile, "too short")
		d.Look()
		shows("with a wrong one", first, true)
		w.put("a", ReaderFile, second)
		d.Look()
		shows("changed", first, false)
		shows("changed", second, true)
		testutil.NoError(t, os.Remove(filepath.Join(w.path, "a", ReaderFile)))
		d.Look()
		shows("removed", second, false)
		w.is(d, "a", StateStale, "")
		w.put("a", ReaderFile, first)
		w.tenant("a", "a.example")
		d.Look()
		shows("in order", first, true)
		w.is(d, "a", StateServing, "")
	})
}

// A token shows a tenant only while that is served.
func TestTheTokenOfOneThatIsNotServedShowsNothing(t *testing.T) {
	w := newWorld(t, "a")
	token := strings.Repeat("token", 8)
	w.put("a", ReaderFile, token)
	d := w.open()
	shows := func(want string) {
		t.Helper()
		testutil.Equal(t, d.Table().Reader(testutil.Must(admin.ParseToken([]byte(token)))(t)), want, "it shows")
	}
	shows("a")
	testutil.NoError(t, os.Remove(filepath.Join(w.path, "a", SettingsFile)))
	d.Look()
	d.Look()
	w.is(d, "a", StateBroken, "")
	shows("")
	w.tenant("a", "a.example")
	d.Look()
	shows("a")
}

// A token of two tenants shows neither, which the log says of both, once.
func TestATokenOfTwoIsLogged(t *testing.T) {
	w := newWorld(t, "a", "b")
	token := strings.Repeat("token", 8)
	w.put("a", ReaderFile, token)
	d := w.open()
	const line = "the tenant's reader-token is another tenant's, too, and so shows nothing; give each its own"
	testutil.Equal(t, testutil.Lines(w.said, line), 0, "lines about the token of one")
	w.put("b", ReaderFile, token)
	for range 3 {
		d.Look()
		w.tenant("b", "b2.example")
	}
	testutil.Equal(t, testutil.Lines(w.said, line), 2, "lines about the token of two")
	testutil.Equal(t, d.Table().Reader(testutil.Must(admin.ParseToken([]byte(token)))(t)), "", "it shows")
	testutil.NoError(t, os.Remove(filepath.Join(w.path, "b", ReaderFile)))
	d.Look()
	w.put("b", ReaderFile, token)
	d.Look()
	testutil.Equal(t, testutil.Lines(w.said, line), 4, "lines once it is of two again")
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }
