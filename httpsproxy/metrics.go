package httpsproxy

import "github.com/prometheus/client_golang/prometheus"

// What a request was, as a metric's label.
const (
	kindConnect = "connect"
	kindForward = "forward"
	kindUpgrade = "upgrade"
)

// How a request ended, as a metric's label, besides the labels of
// tunnel.Failure for a dial that failed.
const (
	outcomeOK      = "ok"      // answered by, or connected to, its destination
	outcomeInvalid = "invalid" // not a request for a proxy
	outcomeLoop    = "loop"    // for this proxy itself
	outcomeBroken  = "broken"  // broken off by the destination or the client
)

type metrics struct {
	open     prometheus.Gauge
	refused  prometheus.Counter
	requests *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "konnectivity_https_proxy_open_connections",
			Help: "Open HTTP proxy client connections, those without a request included.",
		}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "konnectivity_https_proxy_refused_connections_total",
			Help: "HTTP proxy client connections that were refused or evicted because too many are open.",
		}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "konnectivity_https_proxy_requests_total",
			Help: "HTTP proxy requests, by kind and outcome, counted when their destination answered or failed.",
		}, []string{"kind", "outcome"}),
	}
	for _, kind := range []string{kindConnect, kindForward, kindUpgrade} {
		m.requests.WithLabelValues(kind, outcomeOK)
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.open, m.refused, m.requests} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
