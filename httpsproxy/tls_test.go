package httpsproxy

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// testCertificate is for 127.0.0.1 and proxy.test.
func testCertificate(t testing.TB) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	ca := testutil.Must(pki.NewCA("test"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{DNS: []string{"proxy.test"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}))(t)
	return pair.TLS(), ca.Pool()
}

// connectClient is a tunnel to target through a proxy of its own, which is
// spoken to in TLS or not.
func connectClient(t *testing.T, tlsToo bool, target string) tunnel.Conn {
	t.Helper()
	ln := testutil.Listen(t)
	cert, pool := testCertificate(t)
	if tlsToo {
		ln = tls.NewListener(ln, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	}
	p := startProxyOn(t, ln, nil)
	w := dialWire(t, p.addr)
	if !tlsToo {
		w.tunnelTo(target)
		return tunnel.Wrap(w.TCPConn)
	}
	c := tls.Client(w.TCPConn, &tls.Config{RootCAs: pool, ServerName: "127.0.0.1"})
	testutil.Must(c.Write([]byte("CONNECT " + target + " HTTP/1.1\r\n\r\n")))(t)
	want := "HTTP/1.1 200 Connection Established\r\n\r\n"
	got := make([]byte, len(want))
	if _, err := c.Read(got); err != nil || string(got) != want {
		t.Fatalf("answer %q, %v", got, err)
	}
	return tunnel.Wrap(c)
}
