package tunnel_test

import (
	"crypto/tls"
	"io"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestWrapReturnsConnUnchanged(t *testing.T) {
	near, _ := testutil.Pair(t)
	c := tunnel.Wrap(near)
	testutil.Equal(t, tunnel.Wrap(c), c, "a Conn that is wrapped again")
	testutil.Equal(t, c.Out().Nonblocking(), true, "a TCP connection takes bytes on the spot")
}

// resetConn notes with what it was reset.
type resetConn struct {
	tunnel.Conn
	cause error
}

func (c *resetConn) Reset(cause error) error { c.cause = cause; return c.Conn.Reset(cause) }

func TestResetPassesThroughTLS(t *testing.T) {
	near, _ := testutil.Pair(t)
	under := &resetConn{Conn: tunnel.Wrap(near)}
	_ = tunnel.Wrap(tls.Client(under, &tls.Config{})).Reset(io.ErrUnexpectedEOF)
	testutil.Equal(t, under.cause, io.ErrUnexpectedEOF, "why the conn under TLS was reset")
}
