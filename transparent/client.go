package transparent

import (
	"context"

	"konnectivity/internal/access"
	"konnectivity/tunnel"
)

// client is one connection.
type client struct {
	access.Client
	server *Server
	ahead  *ahead // nil once answered
}

// request prepares c to be forwarded to address.
func (c *client) request(ctx context.Context, address string) {
	c.ahead = &ahead{from: c.Conn}
	c.Ask(ctx, "transparent", address, c.ahead)
}

// answer implements tunnel.Answer. The client waits for none, and learns of a
// failure by a reset.
func (c *client) answer(_ tunnel.Conn, err error) (tunnel.Conn, error) {
	err = c.Answered(c.server.metrics, err)
	kept := c.ahead.kept
	c.ahead = nil // the relay does not need it
	if err != nil {
		_ = c.Conn.Reset(err)
		return nil, err
	}
	return tunnel.Unread(c.Conn, kept), nil
}
