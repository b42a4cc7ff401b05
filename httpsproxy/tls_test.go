package httpsproxy

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// testCertificate is for 127.0.0.1 and proxy.test.
func testCertificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	ca := testutil.Must(pki.NewCA("test"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{DNS: []string{"proxy.test"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}))(t)
	return pair.TLS(), ca.Pool()
}

// connectInTLS is a tunnel to target through a proxy of its own, which is spoken to in TLS.
func connectInTLS(t *testing.T, target string) *tls.Conn {
	t.Helper()
	cert, pool := testCertificate(t)
	ln := tls.NewListener(testutil.Listen(t), &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	w := dialWire(t, startProxyOn(t, ln, nil).addr)
	c := tls.Client(w.TCPConn, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"})
	testutil.Must(c.Write([]byte("CONNECT " + target + " HTTP/1.1\r\n\r\n")))(t)
	want := "HTTP/1.1 200 Connection Established\r\n\r\n"
	got := make([]byte, len(want))
	testutil.NoError(t, testutil.Err(c.Read(got)))
	testutil.Equal(t, string(got), want, "the answer")
	return c
}
