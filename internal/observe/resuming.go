package observe

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

// pauseBuckets run from the pause where another link is there to the longest window in use.
var pauseBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 20, 30, 60}

// resumer is a program's part with the ends of connections.
type resumer interface {
	Resuming() resume.Stats
	OnResume(func(pause time.Duration))
}

// Resuming registers the metrics of connections that outlive their links.
// Names begin with prefix, such as konnectivity_sidecar_; all are there from the
// start. It may be called once for each resumer.
func Resuming(r prometheus.Registerer, prefix string, of resumer) error {
	to := NewMaker(r, prefix)
	pauses := to.Histogram("resume_pause_seconds", "How long connections that were resumed had no link.", pauseBuckets).WithLabelValues()
	of.OnResume(func(pause time.Duration) { pauses.Observe(pause.Seconds()) })
	figures := NewFigures(prefix, of.Resuming)
	figures.Gauge("resumable_connections", "Current number of connections that outlive their link.", func(s resume.Stats) float64 { return float64(s.Conns) })
	figures.Gauge("detached_connections", "Current number of connections whose link was lost and that wait for another.",
		func(s resume.Stats) float64 { return float64(s.Detached) })
	figures.Gauge("replay_buffered_bytes", "Memory for bytes sent and not yet acknowledged, which may have to be sent again.",
		func(s resume.Stats) float64 { return float64(s.Kept) })
	figures.Counter("replayed_bytes_total", "Payload that was sent again over another link, in bytes.",
		func(s resume.Stats) float64 { return float64(s.Replayed) })
	figures.Counter("degraded_connections_total", "Number of connections that can no longer outlive their link, because memory ran short.",
		func(s resume.Stats) float64 { return float64(s.Degraded) })
	figures.Add(prometheus.CounterValue, "unresumed_connections_total", "Number of connections that ended because they were not resumed, by reason (window, unconfirmed, unknown, contradiction, memory, fruitless, denied).", func(s resume.Stats, tell Tell) {
		for reason, n := range s.GivenUp {
			tell(float64(n), reason)
		}
	}, "reason")
	figures.Add(prometheus.CounterValue, "resumed_connections_total", "Number of times that a connection was resumed over another link, by why it had lost the one before.", func(s resume.Stats, tell Tell) {
		for cause := range tunnel.AllLossCauses() {
			tell(float64(s.ByCause[cause]), cause.Label())
		}
	}, "cause")
	to.Add(figures)
	return to.Err()
}
