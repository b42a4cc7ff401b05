package observe

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Adder is a counter or a gauge.
type Adder interface{ Add(float64) }

// Fed is a metric of the packet protocol with a part of links, which is computed at a
// scrape and costs links nothing otherwise.
type Fed struct {
	prometheus.Collector // the metric, to which the packet protocol adds

	ask func(tell func(to Adder, total float64))

	mu   sync.Mutex
	told map[Adder]float64
}

// Feed returns a collector for metric. ask is called at each scrape, and reports the total
// of links for each child of metric.
func Feed(metric prometheus.Collector, ask func(tell func(to Adder, total float64))) *Fed {
	return &Fed{Collector: metric, ask: ask, told: make(map[Adder]float64)}
}

// Collect implements prometheus.Collector.
func (f *Fed) Collect(out chan<- prometheus.Metric) {
	f.update()
	f.Collector.Collect(out)
}

func (f *Fed) update() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ask(f.tell)
}

// tell adds the increase since the last scrape. If a total falls, a counter, which cannot
// fall, waits until the total has caught up.
func (f *Fed) tell(to Adder, total float64) {
	more := total - f.told[to]
	if _, falls := to.(prometheus.Gauge); more < 0 && !falls {
		return
	}
	to.Add(more)
	f.told[to] = total
}
