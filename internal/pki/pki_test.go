package pki_test

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

func newCA(t *testing.T) *pki.CA {
	t.Helper()
	return testutil.Must(pki.NewCA("test CA"))(t)
}

func issue(t *testing.T, ca *pki.CA, leaf pki.Leaf) pki.Pair {
	t.Helper()
	return testutil.Must(ca.Issue(leaf))(t)
}

// handshake runs one mutually authenticated handshake over loopback.
func handshake(t *testing.T, ca *pki.CA, server, client pki.Pair, name string) error {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{server.TLS()},
		ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool(),
	})
	testutil.NoError(t, err)
	defer l.Close()
	result := testutil.Later(func() error {
		c, err := l.Accept()
		if err == nil {
			defer c.Close()
			err = c.(*tls.Conn).Handshake()
		}
		return err
	})
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{
		Certificates: []tls.Certificate{client.TLS()}, RootCAs: ca.Pool(), ServerName: name,
	})
	if err == nil {
		defer c.Close()
	}
	return errors.Join(err, <-result)
}

func TestIssuedPairsAuthenticateBothSides(t *testing.T) {
	ca := newCA(t)
	server := issue(t, ca, pki.Leaf{CommonName: "s", DNS: []string{"server.test"}, IPs: []net.IP{net.IPv6loopback}, Server: true})
	client := issue(t, ca, pki.Leaf{CommonName: "c", Organization: "o", DNS: []string{"server.test"}, Client: true})
	for _, name := range []string{"server.test", "::1"} {
		testutil.Succeeds(t, handshake(t, ca, server, client, name), "%s", name)
	}
	testutil.Fails(t, handshake(t, ca, server, client, "other.test"), "a name the certificate lacks was accepted")
	testutil.Fails(t, handshake(t, ca, server, server, "server.test"), "a server's certificate was accepted of a client")
	testutil.Fails(t, handshake(t, ca, client, client, "server.test"), "a client's certificate was accepted of a server")
	stranger := issue(t, newCA(t), pki.Leaf{CommonName: "c", Client: true})
	testutil.Fails(t, handshake(t, ca, server, stranger, "server.test"), "another CA's client was accepted")
	leaf := client.TLS().Leaf
	testutil.Holds(t, leaf.Subject.CommonName == "c" && leaf.Subject.Organization[0] == "o", "subject is %v", leaf.Subject)
	_, ok := client.TLS().PrivateKey.(*ecdsa.PrivateKey)
	testutil.Holds(t, ok, "key is a %T", client.TLS().PrivateKey)
}

func TestLifetimes(t *testing.T) {
	ca := testutil.Must(pki.NewCAFor("short", time.Hour))(t)
	end := func(l time.Duration) time.Duration {
		return time.Until(issue(t, ca, pki.Leaf{CommonName: "x", Lifetime: l}).TLS().Leaf.NotAfter)
	}
	testutil.Between(t, end(30*time.Minute), 25*time.Minute, 31*time.Minute, "30 minutes became")
	d := end(0)
	testutil.Holds(t, d <= time.Hour, "a leaf outlives its CA: %v", d) // the default is a year
	testutil.AtMost(t, end(-time.Hour), -time.Minute, "a born-expired leaf ends in")
	testutil.AtLeast(t, time.Until(newCA(t).Certificate().NotAfter), 9*365*24*time.Hour, "a CA lives only")
}

func TestParseCA(t *testing.T) {
	ca := newCA(t)
	again := testutil.Must(pki.ParseCA(ca.CertPEM, ca.KeyPEM))(t)
	leaf := issue(t, again, pki.Leaf{CommonName: "x", Client: true})
	_, err := leaf.TLS().Leaf.Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}})
	testutil.Succeeds(t, err, "signed by the parsed CA, refused by the original")
	testutil.Fails(t, testutil.Err(pki.ParseCA(leaf.CertPEM, leaf.KeyPEM)), "a leaf was taken for a CA")
	testutil.Fails(t, testutil.Err(pki.ParseCA(ca.CertPEM, leaf.KeyPEM)), "another's key was taken")
	testutil.Fails(t, testutil.Err(pki.ParseCA([]byte("junk"), nil)), "junk was taken")
}

func TestIsDNSName(t *testing.T) {
	label := strings.Repeat("a", 63)
	for name, want := range map[string]bool{
		"a": true, "a-1.test": true, label + ".test": true,
		"": false, "a..test": false, "a.test.": false, "-a.test": false, "a-.test": false, "a_b": false, "a b": false, label + "a.test": false,
		strings.Repeat("a.", 126) + "a": true, strings.Repeat("a.", 126) + "aa": false,
	} {
		testutil.Equal(t, pki.IsDNSName(name), want, "%q is a name", name)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }
