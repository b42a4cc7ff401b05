package access

import (
	"context"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/tunnel"
)

// Client is one connection of a front. With what the front adds, it is all the
// memory that a connection takes here while it is relayed. It is for one
// goroutine, except for Abandon.
type Client struct {
	admission.Slot
	Conn tunnel.Conn
	Flow tunnel.Flow // filled in by Ask

	ctx    context.Context // nil until Ask
	cancel context.CancelCauseFunc
	asked  time.Time
	watch  *admission.Watch // nil once answered
}

// Abandon implements admission.Holder: the connection gets no reply.
func (c *Client) Abandon() {
	_ = c.Conn.Reset(&tunnel.ResetError{Code: tunnel.CodeMemory})
}

// Ask prepares c to be forwarded to address for the front of that name, and
// watches, until Answered, whether it leaves. What it sends meanwhile is read
// into ahead. Finish must follow.
func (c *Client) Ask(ctx context.Context, front, address string, ahead admission.Ahead) {
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.asked = time.Now()
	c.Flow.Front, c.Flow.Network, c.Flow.Address, c.Flow.Source = front, "tcp", address, c.Conn.RemoteAddr()
	c.watch = admission.NewWatch(c.Conn, ahead, c.cancel)
}

// Context ends with the context that was given to Ask, when c leaves before it
// is answered, or by Finish. It is nil before Ask.
func (c *Client) Context() context.Context { return c.ctx }

// Answered ends the watch, and counts the outcome of the dial: err, or that c
// has left. It returns which.
func (c *Client) Answered(m *Metrics, err error) error {
	if gone := c.watch.Stop(); gone != nil {
		err = gone
	}
	c.watch = nil // the relay does not need it
	m.Requests.WithLabelValues(outcome(err)).Inc()
	return err
}

// Finish closes the connection.
func (c *Client) Finish() {
	if c.cancel != nil {
		c.cancel(nil)
	}
	_ = c.Conn.Close()
}
