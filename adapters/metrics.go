package adapters

import (
	"cmp"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/adapters/resolve"
	"konnectivity/adapters/uplink"
	"konnectivity/internal/observe"
	"konnectivity/tunnel"
)

const metricsPrefix = "konnectivity_sidecar_"

// metrics are what operators see of an Adapter. Labels have few values: routes,
// sources, failures.
type metrics struct {
	dials        *prometheus.CounterVec
	dialTime     *prometheus.HistogramVec
	resolveTime  *prometheus.HistogramVec
	tunnelDown   prometheus.Gauge
	verdictsDown prometheus.Counter
}

// dialBuckets run from a warm link on the same node to the bound of a dial.
var dialBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10}

// newMetrics registers all on r, where that is not nil, with the figures of the server read at
// each scrape.
func newMetrics(r prometheus.Registerer, server func() uplink.Stats) (*metrics, error) {
	to := observe.NewMaker(r, metricsPrefix)
	m := &metrics{
		dials: to.Counter("dials_total",
			"Destinations dialed, by route (tunnel, direct, customer_proxy, fallback; none if it failed before) and outcome (ok, or why not).", "route", "outcome"),
		dialTime: to.Histogram("dial_duration_seconds", "Time to reach a destination, names included, by route.", dialBuckets, "route"),
		resolveTime: to.Histogram("resolve_duration_seconds",
			"Time to look up a name, by source of the answer (service, guest, system; none without one) and outcome (found, not_found, unavailable).", dialBuckets, "source", "outcome"),
		tunnelDown: to.Gauge("tunnel_deemed_down",
			"1 while the management fallback is in use: names are resolved and connections made outside the tunnel.").WithLabelValues(),
		verdictsDown: to.Counter("tunnel_deemed_down_total", "Number of times the management fallback deemed the tunnel down.").WithLabelValues(),
	}
	figures := observe.NewFigures(metricsPrefix, server)
	figures.Gauge("server_links", "Links to konnectivity servers that are up.", func(s uplink.Stats) float64 { return float64(s.Links) })
	figures.Gauge("server_lanes", "TCP connections that those links have.", func(s uplink.Stats) float64 { return float64(s.Lanes) })
	figures.Gauge("server_streams", "Streams on those links.", func(s uplink.Stats) float64 { return float64(s.Streams) })
	figures.Counter("server_links_lost_total", "Links that were lost.", func(s uplink.Stats) float64 { return float64(s.Lost) })
	figures.Add(prometheus.CounterValue, "server_connects_total", "Attempts to connect to the konnectivity server, by outcome.", func(s uplink.Stats, tell observe.Tell) {
		tell(float64(s.Connects), "ok")
		tell(float64(s.Failures), "failed")
	}, "outcome")
	to.Add(figures)
	return m, to.Err()
}

func (m *metrics) dialed(f *tunnel.Flow, took time.Duration, err error) {
	route := cmp.Or(string(f.Route), "none")
	outcome := "ok"
	if err != nil {
		outcome = tunnel.FailureOf(err).Label()
	} else {
		observe.Dial(m.dialTime.WithLabelValues(route), f, took)
	}
	m.dials.WithLabelValues(route, outcome).Inc()
}

func (m *metrics) resolved(source resolve.Source, took time.Duration, err error) {
	outcome := "found"
	switch {
	case resolve.IsNotFound(err):
		source, outcome = "none", "not_found"
	case err != nil:
		source, outcome = "none", "unavailable"
	}
	m.resolveTime.WithLabelValues(string(source), outcome).Observe(took.Seconds())
}

func (m *metrics) health(down bool) {
	m.tunnelDown.Set(observe.Flag(down))
	if down {
		m.verdictsDown.Inc()
	}
}
