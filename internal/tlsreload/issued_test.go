package tlsreload_test

import (
	"crypto/x509"
	"testing"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

func TestIssued(t *testing.T) {
	own, other := newCA(t), newCA(t)
	chain := func(ca *pki.CA, l pki.Leaf) []*x509.Certificate {
		pair := testutil.Must(ca.Issue(l))(t)
		return []*x509.Certificate{pair.TLS().Leaf}
	}
	client := chain(own, pki.Leaf{CommonName: "c", Client: true, Lifetime: time.Hour})
	now := time.Now()
	for name, c := range map[string]struct {
		chain []*x509.Certificate
		at    time.Time
		want  bool
	}{
		"its client":                 {client, now, true},
		"its client, once expired":   {client, now.Add(2 * time.Hour), false},
		"its client, as it was then": {client, client[0].NotAfter, true},
		"no certificate":             {nil, now, false},
		"its server":                 {chain(own, pki.Leaf{CommonName: "s", DNS: []string{"s"}, Server: true}), now, false},
		"another CA's client":        {chain(other, pki.Leaf{CommonName: "c", Client: true}), now, false},
	} {
		testutil.Equal(t, tlsreload.Issued(c.chain, own.Pool(), c.at), c.want, "%s", name)
	}
}
