package observe

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/tlsreload"
)

// Certificates registers the metrics of a program's certificate files, with the Source's
// name as a label, which no other Source of the program may have.
func Certificates(r prometheus.Registerer, source *tlsreload.Source) error {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("konnectivity_tls_"+name, help, labels, prometheus.Labels{"name": source.Name()})
	}
	err := r.Register(&certificates{source,
		desc("reloads_total", "Changes of certificate files, by whether the new content could be used.", "result"),
		desc("peers_refused_total", "Peers refused for what their certificates say, such as their role, though a trusted CA issued them."),
		desc("files_broken", "1 while the certificate files on disk cannot be used (the last good ones stay in use), 0 otherwise."),
		desc("certificate_expiry_timestamp_seconds", "When the first certificate of a file in use expires, in seconds since 1970.", "file"),
		desc("revocations_expiry_timestamp_seconds", "When the first revocation list of a file is to be replaced, in seconds since 1970.", "file"),
	})
	if err != nil {
		return fmt.Errorf("register the TLS metrics of %s: %w", source.Name(), err)
	}
	return nil
}

// certificates is a collector that reads the figures once a scrape, so that the expiry of a
// file vanishes with it.
type certificates struct {
	source                                  *tlsreload.Source
	reloads, refused, broken, expiry, lists *prometheus.Desc
}

// Describe implements prometheus.Collector.
func (c *certificates) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.reloads, c.refused, c.broken, c.expiry, c.lists} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (c *certificates) Collect(out chan<- prometheus.Metric) {
	s := c.source.Stats()
	counter := func(d *prometheus.Desc, n int64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n), labels...)
	}
	counter(c.reloads, s.Changes, "success")
	counter(c.reloads, s.Faults, "failure")
	counter(c.refused, s.Refused)
	broken := 0.0
	if s.Broken {
		broken = 1
	}
	out <- prometheus.MustNewConstMetric(c.broken, prometheus.GaugeValue, broken)
	for file, end := range s.Expiry {
		out <- prometheus.MustNewConstMetric(c.expiry, prometheus.GaugeValue, float64(end.Unix()), file)
	}
	if !s.ListsUntil.IsZero() {
		out <- prometheus.MustNewConstMetric(c.lists, prometheus.GaugeValue, float64(s.ListsUntil.Unix()), s.Lists)
	}
}
