package socks5

import "github.com/prometheus/client_golang/prometheus"

type metrics struct {
	open    prometheus.Gauge
	refused *prometheus.CounterVec
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		open: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "konnectivity_socks5_open_connections",
			Help: "Open SOCKS5 client connections, those still in their handshake included.",
		}),
		refused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "konnectivity_socks5_refused_connections_total",
			Help: "SOCKS5 client connections that ended before anything was dialed, by reason.",
		}, []string{"reason"}),
	}
	for _, reason := range reasons {
		m.refused.WithLabelValues(reason)
	}
	if r == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.open, m.refused} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
