package observe

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/internal/tlsreload"
)

// Certificates registers the metrics of a program's certificate files, with the Source's
// name as a label, which no other Source of the program may have.
func Certificates(r prometheus.Registerer, source *tlsreload.Source) error {
	figures := NewFigures("konnectivity_tls_", source.Stats)
	figures.Add(prometheus.CounterValue, "reloads_total", "Changes of certificate files, by whether the new content could be used.", func(s tlsreload.Stats, tell Tell) {
		tell(float64(s.Changes), "success")
		tell(float64(s.Faults), "failure")
	}, "result")
	figures.Counter("peers_refused_total", "Peers refused for what their certificates say, such as their role, though a trusted CA issued them.",
		func(s tlsreload.Stats) float64 { return float64(s.Refused) })
	figures.Gauge("files_broken", "1 while the certificate files on disk cannot be used (the last good ones stay in use), 0 otherwise.",
		func(s tlsreload.Stats) float64 { return Flag(s.Broken) })
	figures.Add(prometheus.GaugeValue, "certificate_expiry_timestamp_seconds", "When the first certificate of a file in use expires, in seconds since 1970.", func(s tlsreload.Stats, tell Tell) {
		for file, cert := range s.First {
			tell(float64(cert.NotAfter.Unix()), file)
		}
	}, "file")
	figures.Add(prometheus.GaugeValue, "certificate_lifetime_seconds", "For how long that certificate is valid in all.", func(s tlsreload.Stats, tell Tell) {
		for file, cert := range s.First {
			tell(cert.NotAfter.Sub(cert.NotBefore).Seconds(), file)
		}
	}, "file")
	figures.Add(prometheus.GaugeValue, "revocations_expiry_timestamp_seconds", "When the first revocation list of a file is to be replaced, in seconds since 1970.", func(s tlsreload.Stats, tell Tell) {
		if !s.ListsUntil.IsZero() {
			tell(float64(s.ListsUntil.Unix()), s.Lists)
		}
	}, "file")
	if err := prometheus.WrapRegistererWith(prometheus.Labels{"name": source.Name()}, r).Register(figures); err != nil {
		return fmt.Errorf("register the TLS metrics of %s: %w", source.Name(), err)
	}
	return nil
}
