package transparent

import (
	"context"
	"errors"
	"net"
	"net/netip"

	"konnectivity/internal/admission"
	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

const (
	// defaultMaxConns bounds what a hostile neighbour can make the process hold.
	defaultMaxConns = 10000

	// readAhead is how much a client may send while its destination is dialed
	// before it has to wait: a TLS ClientHello, or the header of a request. It fits
	// the smallest block of memory that is kept for reuse.
	readAhead = 2<<10 - tunnel.Headroom

	// reasonNotRedirected is why a connection to this port itself is refused, as a
	// metric's label.
	reasonNotRedirected = "not_redirected"
)

// names is what the front's metrics are called.
var names = front.Names{
	Prefix:   "konnectivity_transparent_",
	Refused:  "Connections to the transparent port that ended before anything was dialed, by reason.",
	Requests: "Redirected connections by outcome, counted when their destination answered or failed.",
	Open:     "Open redirected connections.",
	Reasons:  []string{front.ReasonLimit, reasonNotRedirected},
}

// Server serves redirected connections. It may serve any number of listeners at
// once; MaxConns counts the connections of all.
type Server struct {
	*front.Shell[*client]
	original func(net.Conn) (netip.AddrPort, error) // tests redirect nothing
}

// client is one connection.
type client struct {
	front.Client
	server *Server
	ahead  *admission.Lookahead // nil once answered
}

// New checks the options and registers the metrics.
func New(o front.Options) (*Server, error) {
	shell, err := front.New[*client](o, front.Traits{
		Name: "transparent", Connections: "redirected connections", MaxConns: defaultMaxConns, Metrics: names,
	})
	if err != nil {
		return nil, err
	}
	return &Server{Shell: shell, original: original}, nil
}

// Serve accepts connections from ln, which it closes, until ctx ends. It then
// gives open connections the time of Options.Drain, resets those that are left,
// and returns once every goroutine it started has ended: nil after ctx ended,
// else why accepting failed for good. It survives running out of descriptors.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	return s.Shell.Serve(ctx, ln, s.start, func() {})
}

// start serves conn on a goroutine of its own, and calls ended when it is closed.
func (s *Server) start(ctx context.Context, conn net.Conn, ended func()) {
	c := &client{server: s}
	c.Conn = tunnel.Wrap(conn)
	if !s.Admit(c, conn.RemoteAddr()) {
		ended()
		return
	}
	_ = s.Slots.Serve(c) // it has nothing left to say before its dial, so it never waits and cannot be evicted
	go func() {
		if s.prepare(ctx, c, conn) {
			s.Forward(c, &c.Client, c.answer, ended)
		} else {
			ended()
		}
	}()
}

// prepare finds out where a connection was to go. It returns false if c has
// ended.
func (s *Server) prepare(ctx context.Context, c *client, conn net.Conn) bool {
	to, err := s.original(conn)
	if err == nil && to == localAddress(conn) {
		err = errors.New("it was made to this port itself")
	}
	if err != nil {
		s.Metrics.Refuse(reasonNotRedirected)
		s.Log.WithError(err).WithField("client", conn.RemoteAddr().String()).Debug("connection refused: it was not redirected")
		_ = c.Conn.Reset(err)
		s.Slots.Release(c)
		return false
	}
	c.ahead = admission.NewLookahead(c.Conn, readAhead, nil)
	c.Ask(ctx, "transparent", to.String(), c.ahead)
	return true
}

// answer implements tunnel.Answer. The client waits for none, and learns of a
// failure by a reset.
func (c *client) answer(_ tunnel.Conn, err error) (tunnel.Conn, error) {
	err = c.server.Answered(&c.Client, err)
	ahead := c.ahead
	c.ahead = nil // the relay does not need it
	if err != nil {
		ahead.Drop()
		_ = c.Conn.Reset(err)
		return nil, err
	}
	return ahead.Rest(), nil
}

// localAddress is where a connection came to; not valid if it has no such
// address.
func localAddress(conn net.Conn) netip.AddrPort {
	if a, ok := conn.LocalAddr().(*net.TCPAddr); ok {
		own := a.AddrPort()
		return netip.AddrPortFrom(own.Addr().Unmap(), own.Port())
	}
	return netip.AddrPort{}
}
