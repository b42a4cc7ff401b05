package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/url"
	"testing"
	"time"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Where large packets are lost on the way to a proxy with TLS, the first dial says so, and the next
// has small segments: it receives the proxy's certificate.
func TestHTTPSProxyThatLargePacketsDoNotReach(t *testing.T) {
	t.Parallel() // it waits
	ca := testutil.Must(pki.NewCA("nobody trusts this"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "proxy", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}))(t)
	l := testutil.Narrow(t)
	testutil.ServeOn(t, l, func(c *net.TCPConn) {
		_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}).Handshake()
	})
	var path link.Path
	dial := func(bound time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		proxy := &url.URL{Scheme: "https", Host: l.Addr().String()}
		return testutil.Err(DialProxy(ctx, proxy, "dest.example:443", net.Dialer{Control: path.Control}, path.Secure))
	}
	err := dial(3 * time.Second)
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailUnavailable, "the failure")
	_, unheard := errors.AsType[*link.UnheardError](err)
	testutil.Holds(t, unheard, "the first: %v", err)
	err = dial(30 * time.Second)
	_, received := errors.AsType[*tls.CertificateVerificationError](err)
	_, unheard = errors.AsType[*link.UnheardError](err)
	testutil.Holds(t, received && !unheard, "the next: %v", err)
}
