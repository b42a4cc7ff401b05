package tenant

import (
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// peer is a certificate of a CA.
func peer(t *testing.T, ca *pki.CA) *x509.Certificate {
	t.Helper()
	return testutil.Must(ca.Issue(pki.Leaf{CommonName: "peer", Client: true}))(t).TLS().Leaf
}

// listOf is a CA's list of certificates, good for so long.
func listOf(t *testing.T, ca *pki.CA, good time.Duration, certs ...*x509.Certificate) string {
	t.Helper()
	return string(testutil.Must(ca.Revoke(time.Now().Add(good), certs...))(t))
}

// refused says whether a tenant's lists name a certificate, for both of its sides.
func refused(t *testing.T, d *Dir, name string, cert *x509.Certificate) bool {
	t.Helper()
	spec, chain := d.Table().Tenant(name), []*x509.Certificate{cert}
	agents, clients := spec.Agents.Recheck(chain), spec.Clients.Recheck(chain)
	testutil.Equal(t, errors.Is(agents, tlsreload.ErrRevoked), errors.Is(clients, tlsreload.ErrRevoked),
		"of one CA, agents are judged %v and clients %v", agents, clients)
	return errors.Is(clients, tlsreload.ErrRevoked)
}

// A list that cannot be used leaves the tenant served with the one before, and says why. One
// that never had a good one is refused. The other tenant notices nothing.
func TestListsThatCannotBeUsed(t *testing.T) {
	for what, c := range map[string]struct{ text, want string }{
		"garbage":      {"x", "ca.crl: it has no revocation list, neither as PEM nor as DER"},
		"empty":        {"", "ca.crl: it has no revocation list"},
		"another CA's": {listOf(t, newCA(t), time.Hour), `ca.crl: the list of "CN=ca" is signed by none of the CAs`},
		"too large":    {strings.Repeat("#", maxFile+1), "ca.crl: larger than"},
	} {
		w := newWorld(t, "a", "b")
		bad := peer(t, w.ca)
		w.put("a", ListsFile, listOf(t, w.ca, time.Hour, bad))
		w.put("b", ListsFile, listOf(t, w.ca, time.Hour))
		d := w.open()
		other := d.Table().Tenant("b")
		w.put("a", ListsFile, c.text)
		for range 3 {
			d.Look()
			s := w.state(d, "a")
			testutil.Holds(t, s.State == StateStale && strings.HasPrefix(s.Error, c.want), "%s: %+v", what, s)
		}
		testutil.Holds(t, refused(t, d, "a", bad) && d.Table().Tenant("b") == other && !refused(t, d, "b", bad),
			"%s: it changes who is admitted", what)
		if again := w.open(); again.Table().Tenant("a") != nil || again.Table().Tenant("b") == nil {
			t.Errorf("%s: a server that starts has the tenant, or not the other", what)
		}
		w.put("a", ListsFile, listOf(t, w.ca, time.Hour))
		d.Look()
		s := w.state(d, "a")
		testutil.Holds(t, s.State == StateServing && !refused(t, d, "a", bad), "%s, mended: %+v", what, s)
	}
}

// A list that vanishes opens nothing, unless tenant.yaml has changed too.
func TestListsAreNotLostUnnoticed(t *testing.T) {
	w := newWorld(t, "a")
	bad := peer(t, w.ca)
	w.put("a", ListsFile, listOf(t, w.ca, time.Hour, bad))
	d := w.open()
	testutil.NoError(t, os.Remove(filepath.Join(w.path, "a", ListsFile)))
	for range 3 {
		d.Look()
	}
	w.is(d, "a", StateStale, "ca.crl: file does not exist; to admit again what it names, change tenant.yaml too")
	testutil.Holds(t, refused(t, d, "a", bad), "what it named is admitted")
	w.put("a", SettingsFile, "serverNames: [a.example] # without lists\n")
	d.Look()
	w.is(d, "a", StateServing, "")
	testutil.Holds(t, !refused(t, d, "a", bad), "it is refused still")
}

// A list out of date counts, which is logged once; the next one is logged again.
func TestListsOutOfDate(t *testing.T) {
	w := newWorld(t, "a")
	bad := peer(t, w.ca)
	w.put("a", ListsFile, listOf(t, w.ca, -time.Minute, bad))
	d := w.open()
	for range 3 {
		d.Look()
	}
	n := testutil.Lines(w.said, tlsreload.OutdatedLists)
	testutil.Holds(t, n == 1 && refused(t, d, "a", bad), "logged %d times; refused: %v", n, refused(t, d, "a", bad))
	w.put("a", ListsFile, listOf(t, w.ca, -time.Minute))
	d.Look()
	d.Look()
	testutil.Equal(t, testutil.Lines(w.said, tlsreload.OutdatedLists), 2, "how often it is logged")
}

// A list counts for the side whose CA has signed it, though the other's has the same name, and
// beside identities. A reader whose certificate it names sees nothing.
func TestAListIsOfOneSide(t *testing.T) {
	w := newWorld(t, "a")
	agents := newCA(t)
	w.put("a", AgentsCAFile, string(agents.CertPEM))
	w.put("a", SettingsFile, "serverNames: [a.example]\nidentities: {clients: [CN=peer]}\n")
	agent, client := peer(t, agents), peer(t, w.ca)
	d := w.open()
	testutil.Requires(t, d.Table().ReaderBy([]*x509.Certificate{client}) != nil, "a client sees nothing")
	for what, c := range map[string]struct {
		text            string
		agents, clients error
	}{
		"agents'":  {listOf(t, agents, time.Hour, agent, client), tlsreload.ErrRevoked, nil},
		"clients'": {listOf(t, w.ca, time.Hour, agent, client), nil, tlsreload.ErrRevoked},
	} {
		w.put("a", ListsFile, c.text)
		d.Look()
		spec := d.Table().Tenant("a")
		testutil.ErrorIs(t, spec.Agents.Recheck([]*x509.Certificate{agent}), c.agents, "%s list: an agent", what)
		testutil.ErrorIs(t, spec.Clients.Recheck([]*x509.Certificate{client}), c.clients, "%s list: a client", what)
		reader := d.Table().ReaderBy([]*x509.Certificate{client})
		testutil.Holds(t, (reader == nil) == (c.clients != nil), "%s list: a client is a reader: %v", what, reader != nil)
	}
}

// In a Secret it is a key.
func TestListsInASecret(t *testing.T) {
	w := newSecretsWorld(t)
	bad := peer(t, w.ca)
	w.whole("a", "a.example")
	d := w.open()
	w.whole("a", "a.example", ListsFile, listOf(t, w.ca, time.Hour, bad))
	d.Look()
	testutil.Holds(t, refused(t, d, "a", bad), "it does not count")
	w.whole("a", "a.example", ListsFile, "x")
	d.Look()
	w.is(d, "a", StateStale, "ns/a: ca.crl: it has no revocation list")
	testutil.Holds(t, refused(t, d, "a", bad), "the list before does not count any more")
}
