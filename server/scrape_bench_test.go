package server

import (
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/observe"
	"konnectivity/server/auth"
	"konnectivity/server/tenancy"
)

// BenchmarkScrape is a look at /metrics with 1,000 tenants, of which none does
// anything.
func BenchmarkScrape(b *testing.B) {
	log, _ := logtest.NewNullLogger()
	dir, err := tenancy.Open(crowdOfFolders(b, 1000), log)
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	plain := []Listener{{Listener: l}}
	registry := observe.NewRegistry("konnectivity-server")
	s, err := New(Options{
		ID: "server", Clients: plain, Agents: plain, Log: log, Registry: registry,
		Tenants: dir, TenantTokens: func(*tenancy.Tokens) *auth.TokensConfig { return nil },
	})
	if err != nil {
		b.Fatal(err)
	}
	dir.OnChange(s.tenants.apply)
	handler := observe.Metrics(s.gatherer())
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
