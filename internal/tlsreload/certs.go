package tlsreload

import (
	"crypto/x509"
	"strings"
)

// Certs are certificates in DER, one after the other; "" are none. They take a fraction of
// what they take when parsed, 2 to 4 KB each, and are for what is kept long and seldom
// needed.
type Certs string

// CertsOf returns parsed certificates as Certs.
func CertsOf(parsed []*x509.Certificate) Certs {
	size := 0
	for _, cert := range parsed {
		size += len(cert.Raw)
	}
	var all strings.Builder
	all.Grow(size)
	for _, cert := range parsed {
		all.Write(cert.Raw)
	}
	return Certs(all.String())
}

// Parse returns the certificates, which takes 10 to 40 µs each.
func (c Certs) Parse() []*x509.Certificate {
	parsed, _ := x509.ParseCertificates([]byte(c)) // which cannot fail: CertsOf had them parsed
	return parsed
}

// Pool returns the certificates as a pool, and takes as long.
func (c Certs) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	for _, cert := range c.Parse() {
		pool.AddCert(cert)
	}
	return pool
}
