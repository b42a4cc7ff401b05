package pki

import "crypto/x509"

// Name returns what to call the holder of a certificate: its common name, or
// its whole subject if it has none.
func Name(c *x509.Certificate) string {
	if c.Subject.CommonName != "" {
		return c.Subject.CommonName
	}
	return c.Subject.String()
}
