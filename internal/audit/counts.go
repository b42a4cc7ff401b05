package audit

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/observe"
)

// counts are the figures of a Log beside those of its queue.
type counts struct {
	written atomic.Int64
	failing atomic.Bool
}

// register registers the metrics.
func (l *Log) register(r prometheus.Registerer) error {
	figures := observe.NewFigures("konnectivity_audit_", func() *Log { return l })
	figures.Gauge("failing", "1 while audit records cannot be written, 0 otherwise.", func(l *Log) float64 { return observe.Flag(l.counts.failing.Load()) })
	figures.Add(prometheus.CounterValue, "records_total", "Audit records, by whether they were written.", func(l *Log, tell observe.Tell) {
		tell(float64(l.counts.written.Load()), "written")
		tell(float64(l.queue.lost()), "dropped")
	}, "result")
	return r.Register(figures)
}
