package tenant

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net/url"
	"testing"

	"konnectivity/tunnel"
)

// No name of a certificate passes for one of another kind, and a certificate with too many
// names has no identity.
func TestIdentityOf(t *testing.T) {
	many := make([]string, 70)
	for i := range many {
		many[i] = "o"
	}
	for what, c := range map[string]struct {
		cert x509.Certificate
		want tunnel.Identity
	}{
		"of all kinds": {x509.Certificate{
			Subject:  pkix.Name{CommonName: "a", Organization: []string{"o", "p"}},
			DNSNames: []string{"A.example"}, URIs: []*url.URL{{Scheme: "spiffe", Host: "T.example", Path: "/w"}},
		}, tunnel.NewIdentity("cn:a", "dns:a.example", "uri:spiffe://t.example/w", "org:o", "org:p")},
		"a URI in place of a name":   {x509.Certificate{Subject: pkix.Name{CommonName: "uri:spiffe://t.example/w"}}, "cn:uri:spiffe://t.example/w"},
		"two lines":                  {x509.Certificate{Subject: pkix.Name{CommonName: "a\nuid:0"}}, ""},
		"too many organisations":     {x509.Certificate{Subject: pkix.Name{CommonName: "a", Organization: many}}, ""},
		"more names than are looked": {x509.Certificate{Subject: pkix.Name{CommonName: "a"}, DNSNames: many}, ""},
		"no name":                    {x509.Certificate{}, ""},
	} {
		if who := IdentityOf(&c.cert); who != c.want {
			t.Errorf("%s: %q, want %q", what, who, c.want)
		}
	}
}
