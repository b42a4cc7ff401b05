package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/tunnel/roam"
)

// pauseBuckets run from another link that was there to the longest window that
// makes sense.
var pauseBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60}

// resuming is the part of a *roam.Ends that is needed here.
type resuming interface {
	Stats() roam.Stats
	OnResume(func(pause time.Duration))
}

// Resuming registers what is known of the connections that outlive their links.
// Names begin with prefix, such as konnectivity_sidecar_; all are there from the
// start. It may be called once for each ends.
func Resuming(r prometheus.Registerer, prefix string, ends resuming) error {
	pauses := prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "resume_pause_seconds",
		Help: "How long connections that were resumed had no link.", Buckets: pauseBuckets})
	ends.OnResume(func(pause time.Duration) { pauses.Observe(pause.Seconds()) })
	gauge := func(name, help string, value func(roam.Stats) int64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: prefix + name, Help: help}, func() float64 { return float64(value(ends.Stats())) })
	}
	counter := func(name, help string, labels prometheus.Labels, value func(roam.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: prefix + name, Help: help, ConstLabels: labels},
			func() float64 { return float64(value(ends.Stats())) })
	}
	all := []prometheus.Collector{
		pauses,
		gauge("resumable_connections", "Current number of connections that outlive their link.", func(s roam.Stats) int64 { return int64(s.Conns) }),
		gauge("detached_connections", "Current number of connections whose link was lost and that wait for another.", func(s roam.Stats) int64 { return s.Without }),
		gauge("replay_buffered_bytes", "Memory of what may have to be sent again, in bytes.", func(s roam.Stats) int64 { return s.Kept }),
		counter("resumed_connections_total", "Number of times that a connection went on by another link.", nil, func(s roam.Stats) int64 { return s.Resumes }),
		counter("replayed_bytes_total", "Payload that was sent again by another link, in bytes.", nil, func(s roam.Stats) int64 { return s.Replayed }),
		counter("degraded_connections_total", "Number of connections that will not outlive their link, because memory ran short.", nil, func(s roam.Stats) int64 { return s.Degraded }),
	}
	for reason := range ends.Stats().GivenUp {
		all = append(all, counter("unresumed_connections_total", "Number of connections that ended because they were not resumed, by reason (window, unconfirmed, unknown, contradiction, memory).",
			prometheus.Labels{"reason": reason}, func(s roam.Stats) int64 { return s.GivenUp[reason] }))
	}
	for _, c := range all {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}
