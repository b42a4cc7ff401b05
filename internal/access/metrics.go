package access

import "github.com/prometheus/client_golang/prometheus"

// Metrics count what clients of one front ask for.
type Metrics struct {
	Refused  *prometheus.CounterVec // connections that ended before their dial, by reason
	Requests *prometheus.CounterVec // by outcome
}

// Names is what the metrics of a front are called.
type Names struct {
	Prefix                  string // of all names, with its underscore
	Refused, Requests, Open string // help texts
	Reasons                 []string
}

// NewMetrics registers the metrics of a front on r, unless that is nil. open
// returns the number of connections.
func NewMetrics(r prometheus.Registerer, n Names, open func() int) (*Metrics, error) {
	m := &Metrics{
		Refused:  prometheus.NewCounterVec(prometheus.CounterOpts{Name: n.Prefix + "refused_connections_total", Help: n.Refused}, []string{"reason"}),
		Requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: n.Prefix + "requests_total", Help: n.Requests}, []string{"outcome"}),
	}
	for _, reason := range n.Reasons {
		m.Refused.WithLabelValues(reason)
	}
	m.Requests.WithLabelValues(OutcomeOK)
	if r == nil {
		return m, nil
	}
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: n.Prefix + "open_connections", Help: n.Open}, func() float64 { return float64(open()) })
	for _, c := range []prometheus.Collector{gauge, m.Refused, m.Requests} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}
