package socks5

import (
	"cmp"
	"context"
	"errors"
	"net"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

const (
	// defaultHandshakeTimeout bounds greeting, authentication and request
	// together. Genuine clients take milliseconds.
	defaultHandshakeTimeout = 10 * time.Second

	// DefaultMaxConns bounds what a hostile neighbour can make the process
	// hold: a silent connection costs a few KiB and a descriptor.
	DefaultMaxConns = 10000

	// waitingBytes is the cost of a connection that has yet to say what it wants.
	waitingBytes = 8 << 10
)

// Options configures a Server. Of them, only Forwarder is required.
type Options struct {
	front.Options

	// Credentials, if set, are required of every client; a client that does not
	// offer user and password (RFC 1929) is then refused. See LoadCredentials.
	Credentials front.Checker

	// Other, if set, takes over connections that speak HTTP, so that one port
	// can serve both. They come with nothing read and no deadline set, no
	// longer count here, and must be closed by Other. It must not block.
	// Without it they are refused in HTTP.
	Other func(tunnel.Conn)

	handshakeTimeout time.Duration // 0 means defaultHandshakeTimeout
}

// Server serves SOCKS5. It may serve any number of listeners at once; MaxConns
// counts the connections of all.
type Server struct {
	*front.Shell[*client]
	opts Options
}

// New checks the options and registers the metrics.
func New(o Options) (*Server, error) {
	o.handshakeTimeout = cmp.Or(o.handshakeTimeout, defaultHandshakeTimeout)
	shell, err := front.New[*client](o.Options, front.Traits{
		Name: "socks5", Connections: "SOCKS5 connections", MaxConns: DefaultMaxConns, Waiting: waitingBytes, Metrics: names,
	})
	if err != nil {
		return nil, err
	}
	return &Server{Shell: shell, opts: o}, nil
}

// Serve accepts connections from ln, which it closes, until ctx ends. It then
// gives open connections the time of Options.Drain, resets those that are left,
// and returns once every goroutine it started has ended: nil after ctx ended,
// else why accepting failed for good. It survives running out of descriptors.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	return s.Shell.Serve(ctx, ln, func(ctx context.Context, conn net.Conn, ended func()) {
		s.start(ctx, tunnel.Wrap(conn), ended)
	}, s.hurry)
}

// start serves conn on a goroutine of its own, and calls ended when it is closed
// or was given to Options.Other. It is cut short when ctx ends.
func (s *Server) start(ctx context.Context, conn tunnel.Conn, ended func()) {
	if c := s.admit(ctx, conn); c != nil {
		go s.serve(ctx, c, ended)
		return
	}
	ended()
}

// admit returns conn with a slot, or refuses it and returns nil.
func (s *Server) admit(ctx context.Context, conn tunnel.Conn) *client {
	c := &client{server: s}
	c.Conn = conn
	c.shaking, c.hurry = context.WithCancel(ctx)
	_ = conn.SetDeadline(time.Now().Add(s.opts.handshakeTimeout)) // before it has a slot, so that hurry's comes later
	if !s.Admit(c, conn.RemoteAddr()) {
		c.hurry()
		return nil
	}
	return c
}

// serve handles one admitted connection.
func (s *Server) serve(ctx context.Context, c *client, ended func()) {
	if s.prepare(ctx, c) {
		s.Forward(c, &c.Client, c.answer, ended)
	} else {
		ended()
	}
}

// prepare performs the handshake and prepares c for its dial. It returns false
// if c has ended or was handed over.
func (s *Server) prepare(ctx context.Context, c *client) bool {
	stop := context.AfterFunc(ctx, func() { _ = c.Conn.Close() })
	req, err := s.handshake(c)
	stop()
	c.hurry()
	switch why := s.Slots.Serve(c); {
	case why == admission.ErrEvicted:
		err = refused(reasonEvicted, nil, errEvicted)
	case why != nil && err == nil:
		s.WarnFull()
		err = refused(front.ReasonLimit, replyTo(replyGeneral), admission.ErrFull)
	}
	switch {
	case s.handOver(c, err):
		return false
	case err != nil:
		s.refuse(c.Conn, err)
		s.Finish(c, &c.Client)
		return false
	}
	_ = c.Conn.SetDeadline(time.Time{})
	c.request(ctx, req)
	return true
}

// handOver gives c to Options.Other if err says that c speaks HTTP.
func (s *Server) handOver(c *client, err error) bool {
	var r *refusal
	if s.opts.Other == nil || !errors.As(err, &r) || r.reason != reasonHTTP {
		return false
	}
	s.Slots.Release(c)
	_ = c.Conn.SetDeadline(time.Time{})
	s.opts.Other(tunnel.Unread(c.Conn, []byte{r.first}))
	return true
}

// hurry gives every unfinished handshake at most front.DrainHandshake.
func (s *Server) hurry() {
	deadline := time.Now().Add(front.DrainHandshake)
	s.Slots.Waiting(func(c *client) {
		_ = c.Conn.SetDeadline(deadline)
		time.AfterFunc(front.DrainHandshake, c.hurry)
	})
}
