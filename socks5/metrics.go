package socks5

import (
	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/access"
)

type metrics struct {
	refused  *prometheus.CounterVec
	requests *prometheus.CounterVec
}

// newMetrics registers everything; open returns the number of connections.
func newMetrics(r prometheus.Registerer, open func() int) (*metrics, error) {
	m := &metrics{
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "konnectivity_socks5_refused_connections_total",
			Help: "SOCKS5 client connections that ended before anything was dialed, by reason.",
		}, []string{"reason"}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "konnectivity_socks5_requests_total",
			Help: "SOCKS5 requests by outcome, counted when their destination answered or failed.",
		}, []string{"outcome"}),
	}
	for _, reason := range reasons {
		m.refused.WithLabelValues(reason)
	}
	m.requests.WithLabelValues(access.OutcomeOK)
	if r == nil {
		return m, nil
	}
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "konnectivity_socks5_open_connections",
		Help: "Open SOCKS5 client connections, those still in their handshake included.",
	}, func() float64 { return float64(open()) })
	for _, c := range []prometheus.Collector{gauge, m.refused, m.requests} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
