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
	testutil.Holds(t, register("one", files) != nil, "two Sources of one name share their metrics")
	testutil.Equal(t, len(testutil.Must(promtest.GatherAndLint(registry))(t)), 0, "problems of metrics")
	want := `konnectivity_tls_files_broken{name="one"} 0
konnectivity_tls_files_broken{name="two"} 1
konnectivity_tls_peers_refused_total{name="one"} 0
konnectivity_tls_peers_refused_total{name="two"} 0
konnectivity_tls_reloads_total{name="one",result="failure"} 0
konnectivity_tls_reloads_total{name="one",result="success"} 0
konnectivity_tls_reloads_total{name="two",result="failure"} 1
konnectivity_tls_reloads_total{name="two",result="success"} 0
`
	testutil.Equal(t, samples(t, registry, want), want, "metrics")
	testutil.DocumentedLabels(t, "../../docs/metrics.md", "Certificates").Check(t, "", testutil.Must(registry.Gather())(t))
	leaf := pair.TLS().Leaf
	figures := map[string]float64{
		"konnectivity_tls_certificate_expiry_timestamp_seconds": float64(leaf.NotAfter.Unix()),
		"konnectivity_tls_certificate_lifetime_seconds":         leaf.NotAfter.Sub(leaf.NotBefore).Seconds(),
	}
	for name := range figures {
		testutil.Equal(t, testutil.Must(promtest.GatherAndCount(registry, name))(t), 2, "%s: series of two files", name)
	}
	for _, f := range testutil.Must(registry.Gather())(t) {
		want, is := figures[f.GetName()]
		for _, m := range f.GetMetric() {
			testutil.Holds(t, !is || !strings.Contains(m.String(), files.Cert) || m.GetGauge().GetValue() == want,
				"%s of %s is %v, want %v", f.GetName(), files.Cert, m.GetGauge().GetValue(), want)
		}
	}
	files.CRL = in("crl")
	next := time.Now().Add(time.Hour)
	testutil.NoError(t, pki.WriteCert(files.CRL, testutil.Must(ca.Revoke(next))(t)))
	testutil.NoError(t, register("three", files))
	lists := fmt.Sprintf(`konnectivity_tls_revocations_expiry_timestamp_seconds{file=%q,name="three"} %v
`, files.CRL, float64(next.Unix()))
	testutil.Equal(t, samples(t, registry, lists), lists, "metrics of lists")
}
