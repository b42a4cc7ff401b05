package tunnel_test

import (
	"crypto/tls"
	"io"
	"testing"

	"konnectivity/tunnel"
)

func TestWrapReturnsConnUnchanged(t *testing.T) {
	near, _ := tcpPair(t)
	c := tunnel.Wrap(near)
	if tunnel.Wrap(c) != c {
		t.Error("wrapping a Conn again changed it")
	}
	if !c.Out().Nonblocking() {
		t.Error("a TCP connection takes bytes on the spot")
	}
}

// resetConn notes with what it was reset.
type resetConn struct {
	tunnel.Conn
	cause error
}

func (c *resetConn) Reset(cause error) error { c.cause = cause; return c.Conn.Reset(cause) }

func TestResetPassesThroughTLS(t *testing.T) {
	near, _ := tcpPair(t)
	under := &resetConn{Conn: tunnel.Wrap(near)}
	_ = tunnel.Wrap(tls.Client(under, &tls.Config{})).Reset(io.ErrUnexpectedEOF)
	if under.cause != io.ErrUnexpectedEOF {
		t.Errorf("the conn under TLS was reset with %v", under.cause)
	}
}
