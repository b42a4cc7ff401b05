package observe

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Maker makes metrics whose names begin with a prefix, and registers them. One goroutine at a
// time may use it.
type Maker struct {
	to     prometheus.Registerer
	prefix string
	failed error
}

// NewMaker returns a Maker. Where to is nil, metrics are kept and registered nowhere.
func NewMaker(to prometheus.Registerer, prefix string) *Maker { return &Maker{to: to, prefix: prefix} }

// Err is why a metric could not be registered; nil: all are.
func (m *Maker) Err() error { return m.failed }

// Add registers what others have made.
func (m *Maker) Add(all ...prometheus.Collector) {
	for _, c := range all {
		if m.to != nil {
			m.failed = errors.Join(m.failed, m.to.Register(c))
		}
	}
}

func added[C prometheus.Collector](m *Maker, c C) C {
	m.Add(c)
	return c
}

// Counter makes a counter.
func (m *Maker) Counter(name, help string, labels ...string) *prometheus.CounterVec {
	return added(m, prometheus.NewCounterVec(prometheus.CounterOpts{Name: m.prefix + name, Help: help}, labels))
}

// Gauge makes a gauge.
func (m *Maker) Gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return added(m, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: m.prefix + name, Help: help}, labels))
}

// Histogram makes a histogram.
func (m *Maker) Histogram(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return added(m, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: m.prefix + name, Help: help, Buckets: buckets}, labels))
}
