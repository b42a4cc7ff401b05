package transparent

import (
	"context"
	"time"

	"konnectivity/internal/access"
	"konnectivity/internal/admission"
	"konnectivity/tunnel"
)

// client is one connection. It is all the memory that a connection takes here
// while it is relayed.
type client struct {
	admission.Slot
	server *Server
	conn   tunnel.Conn

	// For the goroutine that serves the connection.
	ctx    context.Context
	cancel context.CancelCauseFunc
	flow   tunnel.Flow
	asked  time.Time
	ahead  *ahead // nil once answered
	watch  *admission.Watch
}

// Abandon implements admission.Holder.
func (c *client) Abandon() {
	_ = c.conn.Reset(&tunnel.ResetError{Code: tunnel.CodeMemory})
}

// request prepares c to be forwarded to address, and starts to watch whether it
// leaves.
func (c *client) request(ctx context.Context, address string) {
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.asked = time.Now()
	c.flow.Front, c.flow.Network, c.flow.Address, c.flow.Source = "transparent", "tcp", address, c.conn.RemoteAddr()
	c.ahead = &ahead{from: c.conn}
	c.watch = admission.NewWatch(c.conn, c.ahead, c.cancel)
}

// answer implements tunnel.Answer. The client waits for none, and learns of a
// failure by a reset.
func (c *client) answer(_ tunnel.Conn, err error) (tunnel.Conn, error) {
	if gone := c.watch.Stop(); gone != nil {
		err = gone
	}
	kept := c.ahead.kept
	c.ahead, c.watch = nil, nil // the relay needs neither
	c.server.metrics.Requests.WithLabelValues(access.Outcome(err)).Inc()
	if err != nil {
		_ = c.conn.Reset(err)
		return nil, err
	}
	return tunnel.Unread(c.conn, kept), nil
}
