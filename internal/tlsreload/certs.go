package tlsreload

import "crypto/x509"

// Certs are certificates in DER, one after the other; "" are none. Each takes some 400 bytes,
// and 2 to 4 KB once it is parsed: Certs are for those that are seldom needed.
type Certs string

// CertsOf returns parsed certificates as Certs.
func CertsOf(parsed []*x509.Certificate) Certs {
	var der []byte
	for _, cert := range parsed {
		der = append(der, cert.Raw...)
	}
	return Certs(der)
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
