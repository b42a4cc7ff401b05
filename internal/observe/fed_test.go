package observe

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"konnectivity/internal/testutil"
)

// Repeated scrapes add the part of links once.
func TestFedMetric(t *testing.T) {
	total := 0.0
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "packets_total", Help: "H."}, []string{"kind"})
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(Feed(vec, func(tell func(Adder, float64)) { tell(vec.WithLabelValues("DATA"), total) }))
	want := func(n string) {
		t.Helper()
		page := "packets_total{kind=\"DATA\"} " + n + "\n"
		testutil.Equal(t, samples(t, reg, page), page, "metrics")
	}
	want("0")
	vec.WithLabelValues("DATA").Add(2)
	total = 5
	want("7")
	want("7")
	total = 6
	want("8")
}

// A gauge follows totals that fall. A counter stays, and does not count the same increase
// twice.
func TestFedCountersDoNotFall(t *testing.T) {
	total := 0.0
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "counter", Help: "H."})
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{Name: "gauge", Help: "H."})
	fed := []*Fed{
		Feed(counter, func(tell func(Adder, float64)) { tell(counter, total) }),
		Feed(gauge, func(tell func(Adder, float64)) { tell(gauge, total) }),
	}
	for _, step := range []struct{ total, counter float64 }{{5, 5}, {3, 5}, {4, 5}, {6, 6}} {
		total = step.total
		for i, want := range []float64{step.counter, step.total} {
			testutil.Equal(t, promtest.ToFloat64(fed[i]), want, "at %v: %T is", total, fed[i].Collector)
		}
	}
}

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
	const want = `# HELP x_events_total Events.
# TYPE x_events_total counter
x_events_total 10
# HELP x_level A level.
# TYPE x_level gauge
x_level 1
# HELP x_results_total Results.
# TYPE x_results_total counter
x_results_total{kind="a",result="ok"} 1
x_results_total{kind="b",result="failed"} 0
`
	testutil.NoError(t, promtest.GatherAndCompare(reg, strings.NewReader(want)))
	testutil.Holds(t, reg.Register(f) != nil, "one metric was registered twice")
}
