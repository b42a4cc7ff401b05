package tlsreload

import "github.com/prometheus/client_golang/prometheus"

// metrics is what a Source counts, whether it is registered or not.
type metrics struct {
	changes prometheus.Counter // good changes that came into use; the first reading does not count
	faults  prometheus.Counter // distinct ones
	refused prometheus.Counter // peers, by Options.Peer

	reloads *prometheus.CounterVec // changes and faults
}

func newMetrics() metrics {
	m := metrics{
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "konnectivity_tls_reloads_total",
			Help: "Changes of certificate files, by whether the new content could be used.",
		}, []string{"result"}),
		refused: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "konnectivity_tls_peers_refused_total",
			Help: "Peers refused for what their certificates say, such as their role, though a trusted CA issued them.",
		}),
	}
	m.changes, m.faults = m.reloads.WithLabelValues("success"), m.reloads.WithLabelValues("failure")
	return m
}

// register registers the metrics of s, with its name as a label.
func (s *Source) register(r prometheus.Registerer) error {
	broken := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "konnectivity_tls_files_broken",
		Help: "1 while the certificate files on disk cannot be used (the last good ones stay in use), 0 otherwise.",
	}, func() float64 {
		if s.state.Load().fault != nil {
			return 1
		}
		return 0
	})
	r = prometheus.WrapRegistererWith(prometheus.Labels{"name": s.opts.Name}, r)
	for _, c := range []prometheus.Collector{s.metrics.reloads, s.metrics.refused, broken, expiry{s}} {
		if err := r.Register(c); err != nil {
			return err
		}
	}
	return nil
}

// expiry is a metric for each file in use. It is computed when scraped, so that
// it vanishes with the file.
type expiry struct{ source *Source }

var expiryDesc = prometheus.NewDesc("konnectivity_tls_certificate_expiry_timestamp_seconds",
	"When the first certificate of a file in use expires, in seconds since 1970.", []string{"file"}, nil)

// Describe implements prometheus.Collector.
func (e expiry) Describe(out chan<- *prometheus.Desc) { out <- expiryDesc }

// Collect implements prometheus.Collector.
func (e expiry) Collect(out chan<- prometheus.Metric) {
	if m := e.source.inUse(); m != nil {
		for file, end := range m.expiry {
			out <- prometheus.MustNewConstMetric(expiryDesc, prometheus.GaugeValue, float64(end.Unix()), file)
		}
	}
}
