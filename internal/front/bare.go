package front

import (
	"context"
	"net"

	"konnectivity/tunnel"
)

// Bare is a front without a protocol: where a connection goes is known as it comes. The
// client takes its connection for established by then, so there is no answer to send: one
// whose destination cannot be reached is reset.
type Bare struct {
	*Shell[*Client]

	// To returns where a connection goes, or why it is refused.
	To func(net.Conn) (network, address string, err error)

	// Dialed is told how each dial went, nil: well. It may be nil.
	Dialed func(error)
}

// NewBare is New for a front without a protocol. The caller sets To before Serve.
func NewBare(o Options, t Traits) (*Bare, error) {
	shell, err := New[*Client](o, t)
	return &Bare{Shell: shell}, err
}

// Serve is Shell.Serve.
func (b *Bare) Serve(ctx context.Context, ln net.Listener) error {
	return b.Shell.Serve(ctx, ln, b.start, func() {})
}

// start serves conn on a goroutine of its own, and calls ended when it is closed.
func (b *Bare) start(ctx context.Context, conn net.Conn, ended func()) {
	c := &Client{Conn: tunnel.Wrap(conn)}
	if !b.Admit(c, conn.RemoteAddr()) {
		ended()
		return
	}
	_ = b.Slots.Serve(c) // it has nothing left to say before its dial, so it never waits and cannot be evicted
	go func() {
		network, address, err := b.To(conn)
		if err != nil {
			_ = c.Conn.Reset(err)
			b.Finish(c, c)
			ended()
			return
		}
		c.Ask(ctx, b.traits.Name, address, nil)
		c.Flow.Network = network
		b.Forward(c, c, func(_ tunnel.Conn, err error) (tunnel.Conn, error) { return b.answer(c, err) }, ended)
	}()
}

// answer implements tunnel.Answer. The client waits for none, and learns of a failure by
// a reset.
func (b *Bare) answer(c *Client, err error) (tunnel.Conn, error) {
	near, err := b.Answered(c, err)
	if b.Dialed != nil {
		b.Dialed(err)
	}
	if err != nil {
		_ = c.Conn.Reset(err)
		return nil, err
	}
	return near, nil
}
