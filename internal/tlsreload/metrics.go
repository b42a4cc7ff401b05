package tlsreload

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// stats is what a Source counts.
type stats struct {
	mu       sync.Mutex
	changes  uint64 // good changes that came into use; the first reading does not count
	failures uint64 // distinct faults met
	err      error  // of the last attempt; nil if it succeeded
}

// good records a successful attempt.
func (st *stats) good(changed bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.err = nil
	if changed {
		st.changes++
	}
}

// bad records a failed attempt; news means that it differs from the one before.
func (st *stats) bad(err error, news bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.err = err
	if news {
		st.failures++
	}
}

// fault returns the last attempt's error.
func (st *stats) fault() error {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.err
}

// collector shows a Source to Prometheus. Values are computed at scrape time,
// so that a certificate's series vanish with its file.
type collector struct{ source *Source }

func (c *collector) desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("konnectivity_tls_"+name, help, labels,
		prometheus.Labels{"name": c.source.opts.Name})
}

func (c *collector) expiryDesc() *prometheus.Desc {
	return c.desc("certificate_expiry_timestamp_seconds",
		"When the first certificate of a file in use expires, in seconds since 1970.", "file")
}

func (c *collector) reloadsDesc() *prometheus.Desc {
	return c.desc("reloads_total",
		"Changes of certificate files, by whether the new content could be used.", "result")
}

func (c *collector) brokenDesc() *prometheus.Desc {
	return c.desc("files_broken",
		"1 while the certificate files on disk cannot be used (the last good ones stay in use), 0 otherwise.")
}

func (c *collector) refusedDesc() *prometheus.Desc {
	return c.desc("peers_refused_total",
		"Peers refused for what their certificates say, such as their role, though a trusted CA issued them.")
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	out <- c.expiryDesc()
	out <- c.reloadsDesc()
	out <- c.brokenDesc()
	out <- c.refusedDesc()
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	st := &c.source.stats
	st.mu.Lock()
	changes, failures, broken := st.changes, st.failures, 0.0
	if st.err != nil {
		broken = 1
	}
	st.mu.Unlock()
	out <- prometheus.MustNewConstMetric(c.reloadsDesc(), prometheus.CounterValue, float64(changes), "success")
	out <- prometheus.MustNewConstMetric(c.reloadsDesc(), prometheus.CounterValue, float64(failures), "failure")
	out <- prometheus.MustNewConstMetric(c.brokenDesc(), prometheus.GaugeValue, broken)
	out <- prometheus.MustNewConstMetric(c.refusedDesc(), prometheus.CounterValue, float64(c.source.refused.total()))
	if m := c.source.current.Load(); m != nil {
		for file, end := range m.expiry {
			out <- prometheus.MustNewConstMetric(c.expiryDesc(), prometheus.GaugeValue, float64(end.Unix()), file)
		}
	}
}
