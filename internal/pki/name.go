package pki

import "crypto/x509"

// Name is what to call the holder of a certificate: its common name, or where
// it has none its whole subject.
func Name(c *x509.Certificate) string {
	if c.Subject.CommonName != "" {
		return c.Subject.CommonName
	}
	return c.Subject.String()
}
