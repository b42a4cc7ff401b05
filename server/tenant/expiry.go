package tenant

import (
	"crypto/x509"
	"time"
)

// Expiry is the certificate of a tenant's files that expires first.
type Expiry struct {
	File        string
	From, Until time.Time
}

// findFirst notes which of the tenant's certificates expires first.
func (t *Spec) findFirst() {
	if t.Agents != nil {
		t.First.note(AgentsCAFile, t.Agents.Certs.Parse()...)
	}
	t.First.note(ClientsCAFile, t.Clients.Certs.Parse()...)
	if t.Cert != nil {
		t.First.note(CertFile, t.Cert.Leaf)
	}
}

func (e *Expiry) note(file string, certs ...*x509.Certificate) {
	for _, cert := range certs {
		if e.File == "" || cert.NotAfter.Before(e.Until) {
			*e = Expiry{file, cert.NotBefore, cert.NotAfter}
		}
	}
}
