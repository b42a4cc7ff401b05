package tlsreload

import (
	"crypto/x509"
	"time"
)

// Issued says whether a client's certificate, followed by its intermediates, chained
// to one of the CAs at that time, as crypto/tls itself would. An empty chain did not.
func Issued(chain []*x509.Certificate, cas *x509.CertPool, at time.Time) bool {
	if len(chain) == 0 {
		return false
	}
	opts := x509.VerifyOptions{Roots: cas, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: at}
	for _, cert := range chain[1:] {
		opts.Intermediates.AddCert(cert)
	}
	_, err := chain[0].Verify(opts)
	return err == nil
}

// Trusts says whether a client's certificate, followed by its intermediates, chains
// to the CAs that the files have now. Without CA files, none does.
func (s *Source) Trusts(chain []*x509.Certificate) bool {
	m := s.current.Load()
	return m != nil && m.pool != nil && Issued(chain, m.pool, time.Now())
}
