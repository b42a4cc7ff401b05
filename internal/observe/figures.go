package observe

import "github.com/prometheus/client_golang/prometheus"

// Figures is a collector of metrics that are read at each scrape, all from one S. Make it with
// NewFigures, and add the metrics before it is registered.
type Figures[S any] struct {
	prefix  string
	read    func() S
	metrics []figure[S]
}

// figure is a metric and how it is read.
type figure[S any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	each func(s S, tell Tell)
}

// Tell is told a value, and those of the metric's labels.
type Tell func(value float64, labels ...string)

// NewFigures returns Figures without metrics. Their names begin with prefix. read is called
// once at each scrape, and must not block.
func NewFigures[S any](prefix string, read func() S) *Figures[S] {
	return &Figures[S]{prefix: prefix, read: read}
}

// Add adds a metric with labels, whose values each tells.
func (f *Figures[S]) Add(kind prometheus.ValueType, name, help string, each func(s S, tell Tell), labels ...string) {
	f.metrics = append(f.metrics, figure[S]{prometheus.NewDesc(f.prefix+name, help, labels, nil), kind, each})
}

// Gauge adds a gauge without labels.
func (f *Figures[S]) Gauge(name, help string, value func(S) float64) {
	f.Add(prometheus.GaugeValue, name, help, func(s S, tell Tell) { tell(value(s)) })
}

// Counter adds a counter without labels.
func (f *Figures[S]) Counter(name, help string, value func(S) float64) {
	f.Add(prometheus.CounterValue, name, help, func(s S, tell Tell) { tell(value(s)) })
}

// Bytes adds a counter of bytes by direction, whose values of the label are up and down.
func (f *Figures[S]) Bytes(name, help string, of func(S) (up, down int64), up, down string) {
	f.Add(prometheus.CounterValue, name, help, func(s S, tell Tell) {
		ups, downs := of(s)
		tell(float64(ups), up)
		tell(float64(downs), down)
	}, "direction")
}

// Describe implements prometheus.Collector.
func (f *Figures[S]) Describe(out chan<- *prometheus.Desc) {
	for _, m := range f.metrics {
		out <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (f *Figures[S]) Collect(out chan<- prometheus.Metric) {
	s := f.read()
	for _, m := range f.metrics {
		m.each(s, func(value float64, labels ...string) {
			out <- prometheus.MustNewConstMetric(m.desc, m.kind, value, labels...)
		})
	}
}

// Flag is the value of a gauge that is 1 while something holds, and 0 otherwise.
func Flag(holds bool) float64 {
	if holds {
		return 1
	}
	return 0
}

// FromZero has a counter begin with 0 for these values of its label: an alert on an increase
// does not see the first of a series that begins with 1.
func FromZero(c *prometheus.CounterVec, values ...string) *prometheus.CounterVec {
	for _, value := range values {
		c.WithLabelValues(value)
	}
	return c
}
