package tenant

import (
	"testing"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// The certificate that expires first is found in each file.
func TestTheFirstCertificateToExpire(t *testing.T) {
	soon := testutil.Must(pki.NewCAFor("soon", time.Hour))(t)
	server := testutil.Must(soon.Issue(pki.Leaf{CommonName: "s", DNS: []string{"a.example"}, Server: true, Lifetime: time.Minute}))(t)
	for file, put := range map[string]func(*world){
		AgentsCAFile:  func(w *world) { w.put("a", AgentsCAFile, string(w.ca.CertPEM)+string(soon.CertPEM)) },
		ClientsCAFile: func(w *world) { w.put("a", ClientsCAFile, string(soon.CertPEM)+string(w.ca.CertPEM)) },
		CertFile: func(w *world) {
			w.put("a", ClientsCAFile, string(soon.CertPEM))
			w.put("a", CertFile, string(server.CertPEM))
			w.put("a", KeyFile, string(server.KeyPEM))
		},
	} {
		w := newWorld(t, "a")
		put(w)
		cert := testutil.Must(tlsreload.Certificates(soon.CertPEM))(t)[0]
		if file == CertFile {
			cert = server.TLS().Leaf
		}
		testutil.Equal(t, w.open().Table().Tenant("a").Expiries[0], Expiry{file, cert.NotBefore, cert.NotAfter}, "%s", file)
	}
}

// A tenant with expired files is served, since our clock may be wrong. The log names each, once for
// each change of the tenant's files: a CA that has had its day must not hide a server.crt.
func TestExpiredFilesAreLogged(t *testing.T) {
	w := newWorld(t, "a", "b")
	old := testutil.Must(pki.NewCAFor("old", -time.Hour))(t)
	server := testutil.Must(w.ca.Issue(pki.Leaf{CommonName: "s", DNS: []string{"a.example"}, Server: true, Lifetime: -time.Minute}))(t)
	w.put("a", ClientsCAFile, string(w.ca.CertPEM)+string(old.CertPEM))
	d := w.open()
	logs := func(want ...string) {
		t.Helper()
		for range 3 {
			d.Look()
		}
		w.is(d, "a", StateServing, "")
		var files []string
		for _, entry := range w.said.AllEntries() {
			if entry.Message == tlsreload.ExpiredCertificate {
				testutil.Equal(t, entry.Data["tenant"], any("a"), "it is logged of")
				files = append(files, entry.Data["file"].(string))
			}
		}
		w.said.Reset()
		testutil.EqualSlices(t, files, want, "it is logged of")
	}
	logs(ClientsCAFile)
	w.put("a", CertFile, string(server.CertPEM))
	w.put("a", KeyFile, string(server.KeyPEM))
	logs(ClientsCAFile, CertFile)
}

// A file that expires while another has expired already is logged, too, and again once a clock that
// was wrong has been set.
func TestWhatExpiresLaterIsLogged(t *testing.T) {
	w, d := newDirOf(t)
	now := time.Now()
	e := d.entries["a"]
	e.serving = &Spec{
		Clients:  &CAs{Lists: &tlsreload.Lists{Until: now.Add(time.Hour)}},
		Expiries: []Expiry{{File: ClientsCAFile, Until: now}, {File: CertFile, Until: now.Add(time.Hour)}},
	}
	for i, c := range []struct {
		at           time.Duration
		files, lists int // lines so far
	}{{0, 0, 0}, {time.Minute, 1, 0}, {time.Minute, 1, 0}, {2 * time.Hour, 2, 1}, {2 * time.Hour, 2, 1}, {time.Minute, 2, 1}, {2 * time.Hour, 3, 2}, {0, 3, 2}} {
		d.warnExpired("a", e, now.Add(c.at))
		testutil.Equal(t, testutil.Lines(w.said, tlsreload.ExpiredCertificate), c.files, "lines about files by step %d", i)
		testutil.Equal(t, testutil.Lines(w.said, tlsreload.OutdatedLists), c.lists, "lines about lists by step %d", i)
	}
}

// Looks at tenants with nothing to say of them cost no memory: there are thousands.
func TestNothingToWarnOfCostsNothing(t *testing.T) {
	_, d := newDirOf(t)
	e, now := d.entries["a"], time.Now()
	testutil.MaxAllocs(t, 0, func() { d.warnExpired("a", e, now) })
}
