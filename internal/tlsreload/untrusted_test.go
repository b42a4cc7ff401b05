package tlsreload

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// A real verifier's errors are told in words that lead to the cause.
func TestUntrusted(t *testing.T) {
	ca := testutil.Must(pki.NewCA("a-ca"))(t)
	other := testutil.Must(pki.NewCA("b-ca"))(t)
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprintf("n%d.test", i)
	}
	for name, c := range map[string]struct {
		leaf pki.Leaf
		host string
		at   time.Duration
		by   *pki.CA
		want string
	}{
		"other name":   {pki.Leaf{CommonName: "s", DNS: []string{"b.test"}, IPs: []net.IP{net.IPv4(10, 0, 0, 1)}, Server: true}, "a.test", 0, ca, "its certificate is not for a.test but for b.test, 10.0.0.1"},
		"address":      {pki.Leaf{CommonName: "s", DNS: []string{"b.test"}, Server: true}, "127.0.0.1", 0, ca, "its certificate is not for 127.0.0.1 but for b.test"},
		"no name":      {pki.Leaf{CommonName: "s", Server: true}, "a.test", 0, ca, "its certificate is not for a.test but for no name at all"},
		"many names":   {pki.Leaf{CommonName: "s", DNS: many, Server: true}, "a.test", 0, ca, "n7.test, more"},
		"not yet":      {pki.Leaf{CommonName: "s", DNS: []string{"a.test"}, Server: true}, "a.test", -48 * time.Hour, ca, "correct this machine's clock"},
		"expired":      {pki.Leaf{CommonName: "s", DNS: []string{"a.test"}, Server: true, Lifetime: time.Hour}, "a.test", 48 * time.Hour, ca, "renew it"},
		"other issuer": {pki.Leaf{CommonName: "s", DNS: []string{"a.test"}, Server: true}, "a.test", 0, other, `its certificate was issued by "CN=b-ca", which is not in --ca=x`},
	} {
		pair := testutil.Must(c.by.Issue(c.leaf))(t)
		leaf := testutil.Must(x509.ParseCertificate(pair.TLS().Certificate[0]))(t)
		_, err := leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(), DNSName: c.host, CurrentTime: time.Now().Add(c.at)})
		got := Untrusted(fmt.Errorf("handshake: %w", err), Files{CA: "x"}.Trusted("--ca"))
		testutil.Holds(t, err != nil && strings.Contains(got, c.want), "%s: %v is told as %q, want %q", name, err, got, c.want)
	}
	testutil.Equal(t, Files{}.Trusted("--ca"), "the system's CAs, which count without --ca", "what is trusted")
	testutil.Equal(t, Untrusted(errors.New("x"), ""), "", "of another error it is said")
}
