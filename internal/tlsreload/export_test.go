package tlsreload

import "crypto/x509"

// Pool is the present set of CAs: those of the files, with the system's if so
// configured; nil, which means the system's, if there are no CA files or none
// could be read yet. It must not be modified.
func (s *Source) Pool() *x509.CertPool {
	if m := s.current.Load(); m != nil {
		return m.pool
	}
	return nil
}
