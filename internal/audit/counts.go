package audit

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// counts are the figures of a Log beside those of its queue.
type counts struct {
	written atomic.Int64
	failing atomic.Bool
}

// register registers the metrics.
func (l *Log) register(r prometheus.Registerer) error {
	failing := func() float64 {
		if l.counts.failing.Load() {
			return 1
		}
		return 0
	}
	all := []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "konnectivity_audit_failing", Help: "1 while audit records cannot be written, 0 otherwise.",
		}, failing),
	}
	for result, n := range map[string]func() int64{"written": l.counts.written.Load, "dropped": l.queue.lost} {
		all = append(all, prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "konnectivity_audit_records_total", Help: "Audit records, by whether they were written.",
			ConstLabels: prometheus.Labels{"result": result},
		}, func() float64 { return float64(n()) }))
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}
