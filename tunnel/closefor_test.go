package tunnel_test

import (
	"errors"
	"net"
	"testing"

	"konnectivity/tunnel"
)

// causes is a Conn that notes why it was closed.
type causes struct {
	tunnel.Conn
	cause error
}

func (c *causes) CloseFor(cause error) error {
	c.cause = cause
	return c.Conn.CloseFor(cause)
}

// A Conn with other parts hands on why it is closed, and counts as closed then.
func TestWithHandsOnWhyItIsClosed(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	base, ended, cause := &causes{Conn: tunnel.Wrap(near)}, 0, errors.New("void")
	if err := tunnel.With(base, tunnel.Parts{Ended: func() { ended++ }}).CloseFor(cause); err != nil {
		t.Fatal(err)
	}
	if _, err := near.Write([]byte{1}); base.cause != cause || ended != 1 || err == nil {
		t.Errorf("it was closed for %v, %d were told, and a write says %v", base.cause, ended, err)
	}
}
