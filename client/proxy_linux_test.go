package client_test

import (
	"crypto/tls"
	"net"
	"net/url"
	"strings"
	"testing"

	"konnectivity/client"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// Where large packets are lost on the way to the proxy, connections to it have small segments.
func TestProxyThatLargePacketsDoNotReach(t *testing.T) {
	t.Parallel() // it waits
	l, p := testutil.Narrow(t), new(connectProxy)
	testutil.ServeOn(t, l, p.serve)
	t.Cleanup(p.cut)
	c := newClient(t, func(o *client.Options) {
		o.Address, o.ServerName = "konnectivity.test:8090", "localhost"
		o.Proxy = &url.URL{Scheme: "http", Host: l.Addr().String(), User: url.UserPassword("user", "pass")}
	})
	testutil.Eventually(t, "a link", func() bool { return c.Ready() == nil })
	conn := testutil.Opened(c.Dial("tcp", testutil.Echo(t)))(t)
	says(t, conn, strings.Repeat("large", 10_000))
}

// The same with a proxy that speaks TLS. No client trusts its certificate: an error about that shows
// that the handshake arrives.
func TestHTTPSProxyThatLargePacketsDoNotReach(t *testing.T) {
	t.Parallel() // it waits
	ca := testutil.Must(pki.NewCA("nobody trusts this"))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "proxy", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}))(t)
	l := testutil.Narrow(t)
	testutil.ServeOn(t, l, func(c *net.TCPConn) {
		_ = tls.Server(c, &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}).Handshake()
	})
	c := newClient(t, func(o *client.Options) {
		o.Address, o.ServerName = "konnectivity.test:8090", "localhost"
		o.Proxy = &url.URL{Scheme: "https", Host: l.Addr().String()}
	})
	const large, untrusted = "large packets may be lost", "certificate signed by unknown authority"
	for _, says := range []string{large, untrusted} {
		testutil.Eventually(t, says, func() bool {
			_, err := c.Dial("tcp", "a.example:1")
			return err != nil && strings.Contains(err.Error(), says)
		})
	}
	_, err := c.Dial("tcp", "a.example:1")
	testutil.Holds(t, err != nil && strings.Contains(err.Error(), untrusted) && !strings.Contains(err.Error(), large), "the next: %v", err)
}
