package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

// pauseBuckets run from the pause where another link is there to the longest window in use.
var pauseBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60}

// resumer is the part of a *resume.Manager with its figures.
type resumer interface {
	Stats() resume.Stats
	OnResume(func(pause time.Duration))
}

// Resuming registers the metrics of connections that outlive their links.
// Names begin with prefix, such as konnectivity_sidecar_; all are there from the
// start. It may be called once for each Manager.
func Resuming(r prometheus.Registerer, prefix string, of resumer) error {
	pauses := prometheus.NewHistogram(prometheus.HistogramOpts{Name: prefix + "resume_pause_seconds",
		Help: "How long connections that were resumed had no link.", Buckets: pauseBuckets})
	of.OnResume(func(pause time.Duration) { pauses.Observe(pause.Seconds()) })
	if err := r.Register(pauses); err != nil {
		return err
	}
	return r.Register(newResumingFigures(prefix, of.Stats))
}

// resumingFigures is a collector that reads the figures once a scrape: a server adds up
// those of all its clusters.
type resumingFigures struct {
	stats   func() resume.Stats
	series  []resumingSeries
	givenUp *prometheus.Desc // by reason
	resumes *prometheus.Desc // by cause
}

// resumingSeries is a metric and how it is read.
type resumingSeries struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(resume.Stats) int64
}

func newResumingFigures(prefix string, stats func() resume.Stats) *resumingFigures {
	f := &resumingFigures{stats: stats}
	add := func(kind prometheus.ValueType, name, help string, value func(resume.Stats) int64) {
		f.series = append(f.series, resumingSeries{prometheus.NewDesc(prefix+name, help, nil, nil), kind, value})
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "resumable_connections", "Current number of connections that outlive their link.", func(s resume.Stats) int64 { return int64(s.Conns) })
	add(gauge, "detached_connections", "Current number of connections whose link was lost and that wait for another.", func(s resume.Stats) int64 { return s.Detached })
	add(gauge, "replay_buffered_bytes", "Memory for bytes sent and not yet acknowledged, which may have to be sent again.", func(s resume.Stats) int64 { return s.Kept })
	add(counter, "replayed_bytes_total", "Payload that was sent again over another link, in bytes.", func(s resume.Stats) int64 { return s.Replayed })
	add(counter, "degraded_connections_total", "Number of connections that can no longer outlive their link, because memory ran short.", func(s resume.Stats) int64 { return s.Degraded })
	f.givenUp = prometheus.NewDesc(prefix+"unresumed_connections_total", "Number of connections that ended because they were not resumed, by reason (window, unconfirmed, unknown, contradiction, memory, fruitless, denied).", []string{"reason"}, nil)
	f.resumes = prometheus.NewDesc(prefix+"resumed_connections_total", "Number of times that a connection was resumed over another link, by why it had lost the one before.", []string{"cause"}, nil)
	return f
}

// Describe implements prometheus.Collector.
func (f *resumingFigures) Describe(out chan<- *prometheus.Desc) {
	for _, s := range f.series {
		out <- s.desc
	}
	out <- f.givenUp
	out <- f.resumes
}

// Collect implements prometheus.Collector.
func (f *resumingFigures) Collect(out chan<- prometheus.Metric) {
	stats := f.stats()
	for _, s := range f.series {
		out <- prometheus.MustNewConstMetric(s.desc, s.kind, float64(s.value(stats)))
	}
	for cause := range tunnel.AllLossCauses() {
		out <- prometheus.MustNewConstMetric(f.resumes, prometheus.CounterValue, float64(stats.ByCause[cause]), cause.Label())
	}
	for reason, n := range stats.GivenUp {
		out <- prometheus.MustNewConstMetric(f.givenUp, prometheus.CounterValue, float64(n), reason)
	}
}
