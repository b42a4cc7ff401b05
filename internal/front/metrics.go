package front

import "github.com/prometheus/client_golang/prometheus"

// ReasonLimit is the reason, as a metric's label, of a connection that was
// refused because too many are open.
const ReasonLimit = "limit"

// Names is what the metrics of a front are called.
type Names struct {
	Prefix                  string // of all names, with its underscore
	Refused, Requests, Open string // help texts

	Reasons []string // why connections are refused; nil: they are counted together
	Kinds   []string // of requests; nil: they are counted together
}

// Metrics count what clients of one front ask for.
type Metrics struct {
	Refused  *prometheus.CounterVec // connections that ended before their dial, by reason if Names has Reasons
	Requests *prometheus.CounterVec // by kind if Names has Kinds, and by outcome

	byReason bool
}

// newMetrics registers the metrics of a front on r, unless that is nil, with
// their series from the start. open returns the number of connections.
func newMetrics(r prometheus.Registerer, n Names, open func() int) (*Metrics, error) {
	m := &Metrics{byReason: n.Reasons != nil}
	refusedBy, requestsBy := []string{"reason"}, []string{"kind", "outcome"}
	if !m.byReason {
		refusedBy = nil
	}
	if n.Kinds == nil {
		requestsBy = []string{"outcome"}
	}
	m.Refused = prometheus.NewCounterVec(prometheus.CounterOpts{Name: n.Prefix + "refused_connections_total", Help: n.Refused}, refusedBy)
	m.Requests = prometheus.NewCounterVec(prometheus.CounterOpts{Name: n.Prefix + "requests_total", Help: n.Requests}, requestsBy)
	for _, reason := range append(n.Reasons, ReasonLimit) {
		m.refused(reason)
	}
	for _, kind := range n.Kinds {
		m.Requests.WithLabelValues(kind, OutcomeOK)
	}
	if n.Kinds == nil {
		m.Requests.WithLabelValues(OutcomeOK)
	}
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

// Refuse counts a connection that ended before its dial.
func (m *Metrics) Refuse(reason string) { m.refused(reason).Inc() }

func (m *Metrics) refused(reason string) prometheus.Counter {
	if !m.byReason {
		return m.Refused.WithLabelValues()
	}
	return m.Refused.WithLabelValues(reason)
}
