package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"konnectivity/internal/observe"
)

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
