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
		testutil.Equal(t, w.open().Table().Tenant("a").First, Expiry{file, cert.NotBefore, cert.NotAfter}, "%s", file)
	}
}

// A tenant with an expired CA is served, since our clock may be wrong. The log names the file,
// once for each change of the tenant's files.
func TestAnExpiredCAIsLogged(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.put("a", ClientsCAFile, string(testutil.Must(pki.NewCAFor("old", -time.Hour))(t).CertPEM))
	d := w.open()
	for range 3 {
		d.Look()
	}
	w.is(d, "a", StateServing, "")
	testutil.Equal(t, testutil.Lines(w.said, tlsreload.ExpiredCertificate), 1, "how often it is logged")
	for _, entry := range w.said.AllEntries() {
		if entry.Message == tlsreload.ExpiredCertificate {
			testutil.Holds(t, entry.Data["tenant"] == "a" && entry.Data["file"] == ClientsCAFile, "it is logged of %v", entry.Data)
		}
	}
	w.tenant("a", "a2.example")
	w.put("a", AgentsCAFile, string(testutil.Must(pki.NewCAFor("old", -time.Hour))(t).CertPEM))
	d.Look()
	d.Look()
	testutil.Equal(t, testutil.Lines(w.said, tlsreload.ExpiredCertificate), 2, "how often it is logged after a change")
}
