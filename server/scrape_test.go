package server

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/observe"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/server/auth"
	"konnectivity/server/tenant"
)

// crowdOfFolders is a directory of so many tenants.
func crowdOfFolders(t testing.TB, crowd int) string {
	dir := t.TempDir()
	ca := testutil.Must(pki.NewCA("ca"))(t)
	for i := range crowd {
		writeTenant(t, dir, fmt.Sprintf("tenant-%d", i), fmt.Sprintf("serverNames: [t%d.example]", i), ca)
	}
	return dir
}

// crowdedServer is a server of so many tenants that does not run, so that nothing
// but what is measured allocates.
func crowdedServer(t testing.TB, crowd int, registry *prometheus.Registry) *Server {
	log, _ := logtest.NewNullLogger()
	dir, err := tenant.Open(crowdOfFolders(t, crowd), log)
	testutil.NoError(t, err)
	l := testutil.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	plain := []Listener{{Listener: l}}
	s, err := New(Options{
		ID: "server", Clients: plain, Agents: plain, Log: log, Registry: registry,
		Tenants: dir, TenantTokens: func(*tenant.Tokens) *auth.TokensConfig { return nil },
	})
	testutil.NoError(t, err)
	dir.OnChange(s.tenants.apply)
	return s
}

// Of many tenants, a scrape costs little more than the series that each has.
func TestAScrapeOfManyTenantsIsCheap(t *testing.T) {
	const crowd = 100
	s := crowdedServer(t, crowd, prometheus.NewRegistry())
	scrape := func() {
		if _, err := s.gatherer().Gather(); err != nil {
			t.Error(err)
		}
	}
	const alone, perTenant = 1500, 15
	if got := testing.AllocsPerRun(5, scrape); got > alone+crowd*perTenant {
		t.Errorf("%v allocations, of which a tenant has %v; %d are enough", got, (got-alone)/crowd, perTenant)
	}
}

// BenchmarkScrape is what a look at /metrics costs with 1,000 tenants, of which none
// does anything, without the rest that observe.Metrics takes after each.
func BenchmarkScrape(b *testing.B) {
	s := crowdedServer(b, 1000, observe.NewRegistry("konnectivity-server"))
	handler := promhttp.HandlerFor(s.gatherer(), promhttp.HandlerOpts{})
	for _, coding := range []string{"identity", "gzip"} {
		b.Run(coding, func(b *testing.B) {
			r := httptest.NewRequest(http.MethodGet, "/metrics", nil)
			r.Header.Set("Accept-Encoding", coding)
			var size int64
			b.ReportAllocs()
			for b.Loop() {
				w := httptest.NewRecorder()
				handler.ServeHTTP(w, r)
				size, _ = io.Copy(io.Discard, w.Body)
			}
			b.ReportMetric(float64(size), "B/answer")
		})
	}
}
