package transparent

import (
	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/access"
)

// Why a connection ended before its dial, as a metric's label.
const (
	reasonLimit         = "limit"          // too many connections are open
	reasonNotRedirected = "not_redirected" // it was made to this port itself
)

type metrics struct {
	refused  *prometheus.CounterVec
	requests *prometheus.CounterVec
}

// newMetrics registers everything; open returns the number of connections.
func newMetrics(r prometheus.Registerer, open func() int) (*metrics, error) {
	m := &metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "konnectivity_transparent_refused_connections_total",
			Help: "Connections to the transparent port that ended before anything was dialed, by reason.",
		}, []string{"reason"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "konnectivity_transparent_requests_total",
			Help: "Redirected connections by outcome, counted when their destination answered or failed.",
		}, []string{"outcome"}),
	}
	for _, reason := range []string{reasonLimit, reasonNotRedirected} {
		m.refused.WithLabelValues(reason)
	}
	m.requests.WithLabelValues(access.OutcomeOK)
	if r == nil {
		return m, nil
	}
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "konnectivity_transparent_open_connections",
		Help: "Open redirected connections.",
	}, func() float64 { return float64(open()) })
	for _, c := range []prometheus.Collector{gauge, m.refused, m.requests} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
