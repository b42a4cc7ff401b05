package front

import (
	"context"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/tunnel"
)

// Client is one connection of a front that passes bytes on as they are. With
// what the front adds, it is all the memory that a connection takes in a front
// while it is relayed. It is for one goroutine, except for Abandon.
type Client struct {
	admission.Slot
	Conn tunnel.Conn
	Flow tunnel.Flow // filled in by Ask

	ctx    context.Context // nil until Ask
	cancel context.CancelCauseFunc
	asked  time.Time
	ahead  *admission.Lookahead // nil once answered
	watch  *admission.Watch     // the same
}

// Abandon implements admission.Holder: the connection gets no reply.
func (c *Client) Abandon() {
	_ = c.Conn.Reset(&tunnel.ResetError{Code: tunnel.CodeMemory})
}

// Ask prepares c to be forwarded to address for the front of that name, and
// watches, until Shell.Answered, whether it leaves. The bytes that it sends
// meanwhile are kept, behind those in read, which came before. The dial is given up
// when ctx ends or the client leaves. Shell.Forward must follow.
func (c *Client) Ask(ctx context.Context, front, address string, read []byte) {
	c.ctx, c.cancel = context.WithCancelCause(ctx)
	c.asked = time.Now()
	c.Flow.Front, c.Flow.Network, c.Flow.Address, c.Flow.Source = front, "tcp", address, c.Conn.RemoteAddr()
	c.ahead = admission.NewLookahead(c.Conn, read)
	c.watch = admission.NewWatch(c.ahead, c.cancel)
}
