package observe

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// ends are figures that a test sets.
type ends struct {
	now     resume.Stats
	resumed func(time.Duration)
}

func (e *ends) Resuming() resume.Stats { return e.now }

func (e *ends) OnResume(f func(time.Duration)) { e.resumed = f }

func TestResumingMetricsStartAtZero(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	testutil.NoError(t, Resuming(reg, "x_", &ends{now: resume.New(resume.Options{}).Stats()}))
	testutil.Equal(t, len(testutil.Must(promtest.GatherAndLint(reg))(t)), 0, "problems of metrics")
	all := testutil.Must(reg.Gather())(t)
	testutil.Equal(t, len(all), 8, "metrics")
	for _, f := range all {
		for _, m := range f.Metric {
			testutil.Equal(t, m.GetCounter().GetValue()+m.GetGauge().GetValue()+m.GetHistogram().GetSampleSum(), 0,
				"%s begins with", f.GetName())
		}
	}
	testutil.DocumentedLabels(t, "../../docs/metrics.md", "Of both").Check(t, "x_", all)
}

func TestResumingMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	e := &ends{now: resume.Stats{GivenUp: map[string]int64{"window": 0}}}
	testutil.NoError(t, Resuming(reg, "x_", e))
	e.now = resume.Stats{Conns: 1, Detached: 2, Kept: 3, Resumes: 4, ByCause: link.Losses{tunnel.LossCut: 4}, Replayed: 5, Degraded: 6, GivenUp: map[string]int64{"window": 7}}
	e.resumed(300 * time.Millisecond)
	all := testutil.Must(reg.Gather())(t)
	got := map[string]float64{}
	for _, f := range all {
		for _, m := range f.Metric {
			got[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetHistogram().GetSampleSum()
		}
	}
	for name, want := range map[string]float64{
		"x_resumable_connections": 1, "x_detached_connections": 2, "x_replay_buffered_bytes": 3, "x_resumed_connections_total": 4,
		"x_replayed_bytes_total": 5, "x_degraded_connections_total": 6, "x_unresumed_connections_total": 7, "x_resume_pause_seconds": 0.3,
	} {
		testutil.Equal(t, got[name], want, "%s is", name)
	}
}
