package front

import (
	"context"
	"net"

	"konnectivity/internal/admission"
	"konnectivity/tunnel"
)

// bareAhead is how much a client may send while its destination is dialed before it
// has to wait: a TLS ClientHello, or the header of a request. It fits the smallest block
// of memory that is kept for reuse.
const bareAhead = 2<<10 - tunnel.Headroom

// Bare is a front without a protocol: where a connection goes is known as it comes. The
// client takes its connection for established by then, so there is no answer to send: one
// whose destination cannot be reached is reset.
type Bare struct {
	*Shell[*bareClient]

	// To returns where a connection goes, or why it is refused.
	To func(net.Conn) (network, address string, err error)

	// Dialed is told how each dial went, nil: well. It may be nil.
	Dialed func(error)
}

// bareClient is one connection.
type bareClient struct {
	Client
	ahead *admission.Lookahead // nil once answered
}

// NewBare is New for a front without a protocol. The caller sets To before Serve.
func NewBare(o Options, t Traits) (*Bare, error) {
	shell, err := New[*bareClient](o, t)
	return &Bare{Shell: shell}, err
}

// Serve is Shell.Serve.
func (b *Bare) Serve(ctx context.Context, ln net.Listener) error {
	return b.Shell.Serve(ctx, ln, b.start, func() {})
}

// start serves conn on a goroutine of its own, and calls ended when it is closed.
func (b *Bare) start(ctx context.Context, conn net.Conn, ended func()) {
	c := &bareClient{}
	c.Conn = tunnel.Wrap(conn)
	if !b.Admit(c, conn.RemoteAddr()) {
		ended()
		return
	}
	_ = b.Slots.Serve(c) // it has nothing left to say before its dial, so it never waits and cannot be evicted
	go func() {
		network, address, err := b.To(conn)
		if err != nil {
			_ = c.Conn.Reset(err)
			b.Finish(c, &c.Client)
			ended()
			return
		}
		c.ahead = admission.NewLookahead(c.Conn, bareAhead, nil)
		c.Ask(ctx, b.traits.Name, address, c.ahead)
		c.Flow.Network = network
		b.Forward(c, &c.Client, func(_ tunnel.Conn, err error) (tunnel.Conn, error) { return b.answer(c, err) }, ended)
	}()
}

// answer implements tunnel.Answer. The client waits for none, and learns of a failure by
// a reset.
func (b *Bare) answer(c *bareClient, err error) (tunnel.Conn, error) {
	err = b.Answered(&c.Client, err)
	if b.Dialed != nil {
		b.Dialed(err)
	}
	ahead := c.ahead
	c.ahead = nil // the relay does not need it
	if err != nil {
		ahead.Drop()
		_ = c.Conn.Reset(err)
		return nil, err
	}
	return ahead.Rest(), nil
}
