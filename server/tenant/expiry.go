package tenant

import (
	"crypto/x509"
	"slices"
	"time"
)

// Expiry is the certificate of one of a tenant's files that expires first.
type Expiry struct {
	File        string
	From, Until time.Time
}

// expires notes when the first of a file's certificates expires.
func (t *Spec) expires(file string, certs ...*x509.Certificate) {
	first := slices.MinFunc(certs, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	t.Expiries = append(t.Expiries, Expiry{file, first.NotBefore, first.NotAfter})
	slices.SortFunc(t.Expiries, func(a, b Expiry) int { return a.Until.Compare(b.Until) })
}
