package observe

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

// Each Source has its series from the start, and one for each file in use.
func TestCertificates(t *testing.T) {
	ca := testutil.Must(pki.NewCA("a"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "a", Server: true}))(t)
	dir := t.TempDir()
	in := func(name string) string { return filepath.Join(dir, name) }
	files := tlsreload.Files{CA: in("ca.crt"), Cert: in("tls.crt"), Key: in("tls.key")}
	testutil.NoError(t, pki.WriteCert(files.CA, ca.CertPEM))
	testutil.NoError(t, pki.WriteCert(files.Cert, pair.CertPEM))
	testutil.NoError(t, pki.WriteKey(files.Key, pair.KeyPEM))
	registry := prometheus.NewPedanticRegistry()
	register := func(name string, files tlsreload.Files) error {
		return Certificates(registry, testutil.Must(tlsreload.New(files, tlsreload.Options{Name: name, Lenient: true}))(t))
	}
	testutil.NoError(t, register("one", files))
	testutil.NoError(t, register("two", tlsreload.Files{CA: in("none")}))
	if register("one", files) == nil {
		t.Error("two Sources of one name share their metrics")
	}
	if problems, err := promtest.GatherAndLint(registry); err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
	want := `# HELP konnectivity_tls_files_broken 1 while the certificate files on disk cannot be used (the last good ones stay in use), 0 otherwise.
# TYPE konnectivity_tls_files_broken gauge
konnectivity_tls_files_broken{name="one"} 0
konnectivity_tls_files_broken{name="two"} 1
# HELP konnectivity_tls_peers_refused_total Peers refused for what their certificates say, such as their role, though a trusted CA issued them.
# TYPE konnectivity_tls_peers_refused_total counter
konnectivity_tls_peers_refused_total{name="one"} 0
konnectivity_tls_peers_refused_total{name="two"} 0
# HELP konnectivity_tls_reloads_total Changes of certificate files, by whether the new content could be used.
# TYPE konnectivity_tls_reloads_total counter
konnectivity_tls_reloads_total{name="one",result="failure"} 0
konnectivity_tls_reloads_total{name="one",result="success"} 0
konnectivity_tls_reloads_total{name="two",result="failure"} 1
konnectivity_tls_reloads_total{name="two",result="success"} 0
`
	if err := promtest.GatherAndCompare(registry, strings.NewReader(want), "konnectivity_tls_files_broken", "konnectivity_tls_peers_refused_total", "konnectivity_tls_reloads_total"); err != nil {
		t.Error(err)
	}
	leaf := pair.TLS().Leaf
	figures := map[string]float64{
		"konnectivity_tls_certificate_expiry_timestamp_seconds": float64(leaf.NotAfter.Unix()),
		"konnectivity_tls_certificate_lifetime_seconds":         leaf.NotAfter.Sub(leaf.NotBefore).Seconds(),
	}
	for name := range figures {
		if n, err := promtest.GatherAndCount(registry, name); n != 2 || err != nil {
			t.Errorf("%s: %d series of two files: %v", name, n, err)
		}
	}
	for _, f := range testutil.Must(registry.Gather())(t) {
		want, is := figures[f.GetName()]
		for _, m := range f.GetMetric() {
			if is && strings.Contains(m.String(), files.Cert) && m.GetGauge().GetValue() != want {
				t.Errorf("%s of %s is %v, want %v", f.GetName(), files.Cert, m.GetGauge().GetValue(), want)
			}
		}
	}
	files.CRL = in("crl")
	next := time.Now().Add(time.Hour)
	testutil.NoError(t, pki.WriteCert(files.CRL, testutil.Must(ca.Revoke(next))(t)))
	testutil.NoError(t, register("three", files))
	lists := fmt.Sprintf(`
# HELP konnectivity_tls_revocations_expiry_timestamp_seconds When the first revocation list of a file is to be replaced, in seconds since 1970.
# TYPE konnectivity_tls_revocations_expiry_timestamp_seconds gauge
konnectivity_tls_revocations_expiry_timestamp_seconds{file=%q,name="three"} %d
`, files.CRL, next.Unix())
	testutil.NoError(t, promtest.GatherAndCompare(registry, strings.NewReader(lists), "konnectivity_tls_revocations_expiry_timestamp_seconds"))
}
