// Package observe serves the health and the metrics of every program over HTTP, including
// those of native links. Profiles have a package of their own, profiles.
//
// Serve owns its listener and connections; nothing else in the package owns resources.
package observe

import (
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"konnectivity/internal/version"
	"konnectivity/tunnel"
)

// NewRegistry returns a registry with the metrics of any Go program (go_*,
// process_*) and konnectivity_build_info, which has component as a label.
func NewRegistry(component string) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(component),
	)
	return registry
}

// buildInfo is a gauge that is always 1, with the build in its labels.
func buildInfo(component string) prometheus.Collector {
	build := version.Get()
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "konnectivity_build_info",
		Help: "1, with the version of the running program in its labels.",
		ConstLabels: prometheus.Labels{
			"component": component, "version": build.Version, "commit": build.Commit, "goversion": build.Go,
		},
	}, func() float64 { return 1 })
}

// Dial observes in h, a histogram, for how long a connection was dialed. One whose span is
// sent (docs/traces.md) is an exemplar, which Prometheus takes in its protobuf form.
func Dial(h prometheus.Observer, f *tunnel.Flow, took time.Duration) {
	if f.Span.ID == 0 {
		h.Observe(took.Seconds())
		return
	}
	h.(prometheus.ExemplarObserver).ObserveWithExemplar(took.Seconds(), prometheus.Labels{"trace_id": tunnel.TraceID(f.ID)})
}

// RedirectToPort redirects requests to another port of the same host, for /metrics of the
// agent's admin port.
func RedirectToPort(port int) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := (&url.URL{Host: r.Host}).Hostname()
		target := *r.URL
		target.Scheme, target.Host = "http", net.JoinHostPort(host, strconv.Itoa(port))
		http.Redirect(w, r, target.String(), http.StatusMovedPermanently)
	})
}
