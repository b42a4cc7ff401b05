package observe

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"konnectivity/internal/testutil"
)

// All figures of a scrape are of one reading.
func TestFiguresAreReadOnceAScrape(t *testing.T) {
	reads := 0
	f := NewFigures("x_", func() float64 { reads++; return float64(reads) })
	f.Gauge("level", "A level.", func(n float64) float64 { return n })
	f.Counter("events_total", "Events.", func(n float64) float64 { return 10 * n })
	f.Add(prometheus.CounterValue, "results_total", "Results.", func(n float64, tell Tell) {
		tell(n, "ok", "a")
		tell(Flag(n > 1), "failed", "b")
	}, "result", "kind")
	reg := prometheus.NewPedanticRegistry()
	testutil.NoError(t, reg.Register(f))
	if err := promtest.GatherAndCompare(reg, strings.NewReader(`# HELP x_events_total Events.
# TYPE x_events_total counter
x_events_total 10
# HELP x_level A level.
# TYPE x_level gauge
x_level 1
# HELP x_results_total Results.
# TYPE x_results_total counter
x_results_total{kind="a",result="ok"} 1
x_results_total{kind="b",result="failed"} 0
`)); err != nil {
		t.Error(err)
	}
	if reg.Register(f) == nil {
		t.Error("one metric was registered twice")
	}
}
