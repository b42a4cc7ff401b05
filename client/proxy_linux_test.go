package client_test

import (
	"net/url"
	"strings"
	"testing"

	"konnectivity/client"
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
	conn := testutil.Must(c.Dial("tcp", testutil.Echo(t)))(t)
	defer conn.Close()
	says(t, conn, strings.Repeat("large", 10_000))
}
