package agent

import (
	"context"
	"errors"
	"net/url"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// The first connection by a proxy fails if large packets are lost on the way to it, and the second
// succeeds.
func TestProxyThatLargePacketsDoNotReach(t *testing.T) {
	t.Parallel()
	ca, config := newCA(t)
	server := newTestServer(t, ca, "server-1", false)
	proxy, _ := connectProxyOn(t, testutil.Narrow(t))
	c := newConnector(testOptions(config, "x:1"), &tunnel.Forwarder{}, nil, nil)
	connect := func(bound time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), bound)
		defer cancel()
		conn, err := c.secure(ctx, address{host: "localhost", dial: server.address(), proxy: &url.URL{Scheme: "http", Host: proxy}})
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	err := connect(3 * time.Second)
	_, unheard := errors.AsType[*link.UnheardError](err)
	testutil.Equal(t, unheard, true, "the first says why: %v", err)
	testutil.NoError(t, connect(30*time.Second))
}
