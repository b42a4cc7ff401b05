package socks5

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	armon "github.com/armon/go-socks5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/access"
	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

const (
	// defaultHandshakeTimeout bounds greeting, authentication and request
	// together. Genuine clients take milliseconds.
	defaultHandshakeTimeout = 10 * time.Second

	// DefaultMaxConns bounds what a hostile neighbour can make the process
	// hold: a silent connection costs a few KiB and a descriptor.
	DefaultMaxConns = 10000

	// strangerBytes is the cost of a connection that has yet to say what it
	// wants, and strangersBytes the bound for all of them together.
	strangerBytes  = 8 << 10
	strangersBytes = 32 << 20

	// drainHandshake is how long a handshake may go on once Serve was asked to
	// end: enough for a genuine client, and not long to wait for others.
	drainHandshake = time.Second
)

// Options configures a Server. Only Forwarder is required.
type Options struct {
	// Forwarder dials what clients ask for and relays.
	Forwarder *tunnel.Forwarder

	// Credentials, if set, are required of every client; a client that does not
	// offer user and password (RFC 1929) is then refused. See LoadCredentials.
	Credentials Checker

	// rules may refuse a request; nil allows every CONNECT. It sees names
	// unresolved. BIND and UDP ASSOCIATE are refused before.
	rules armon.RuleSet

	// Other, if set, takes over connections that speak HTTP, so that one port
	// can serve both. They come with nothing read and no deadline set, no
	// longer count here, and must be closed by Other. It must not block.
	// Without it they are refused in HTTP.
	Other func(tunnel.Conn)

	handshakeTimeout time.Duration // 0 means defaultHandshakeTimeout
	MaxConns         int           // open connections; 0 means DefaultMaxConns
	Descriptors      int           // that the connections are to make do with; 0: no bound
	Drain            time.Duration // how long open connections may take to finish; 0 cuts them at once

	// AccessLog logs one line for each connection at info instead of debug.
	AccessLog bool

	Log        logrus.FieldLogger    // nil discards
	Registerer prometheus.Registerer // nil registers no metrics
}

// Server serves SOCKS5. It may serve any number of listeners and connections
// at once; MaxConns counts all of them.
type Server struct {
	opts    Options
	metrics *access.Metrics
	slots   *admission.Slots[*client]
}

// New checks the options and registers the metrics.
func New(o Options) (*Server, error) {
	if o.Forwarder == nil {
		return nil, errors.New("socks5: no forwarder given")
	}
	if o.handshakeTimeout < 0 || o.MaxConns < 0 || o.Descriptors < 0 || o.Drain < 0 {
		return nil, errors.New("socks5: timeouts and limits cannot be negative")
	}
	if o.handshakeTimeout == 0 {
		o.handshakeTimeout = defaultHandshakeTimeout
	}
	if o.MaxConns == 0 {
		o.MaxConns = DefaultMaxConns
	}
	if o.rules == nil {
		o.rules = armon.PermitAll()
	}
	if o.Log == nil {
		o.Log = logging.Discard()
	}
	share := admission.ShareOut(o.Descriptors)
	slots := admission.NewSlots[*client](admission.Limits{
		Open: o.MaxConns, Served: share.Relayed, Waiting: share.Strangers, Bytes: strangersBytes, Each: strangerBytes,
	})
	m, err := access.NewMetrics(o.Registerer, names, slots.Count)
	if err != nil {
		return nil, fmt.Errorf("socks5: register metrics: %w", err)
	}
	return &Server{opts: o, metrics: m, slots: slots}, nil
}

// Serve accepts connections from ln, which it closes, until ctx ends. It then
// gives open connections the time of Options.Drain, resets those that are left,
// and returns once every goroutine it started has ended: nil after ctx ended,
// else why accepting failed for good. It survives running out of descriptors.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	accept := admission.Acceptor{What: "SOCKS5 connections", Log: s.opts.Log, MakeRoom: s.slots.MakeRoom}
	return accept.Serve(ctx, ln, admission.Drain{Time: s.opts.Drain, Begin: s.hurry}, func(conn net.Conn) func(context.Context) {
		if c := s.admit(tunnel.Wrap(conn)); c != nil {
			return func(work context.Context) { s.serve(work, c) }
		}
		return nil
	})
}

// serveConn serves one connection that somebody else accepted, and returns when
// it has ended and is closed, or was given to Options.Other. When ctx ends it
// is cut short.
func (s *Server) serveConn(ctx context.Context, conn tunnel.Conn) {
	if c := s.admit(conn); c != nil {
		s.serve(ctx, c)
	}
}

// admit returns conn with a slot, or refuses it and returns nil.
func (s *Server) admit(conn tunnel.Conn) *client {
	c := &client{server: s}
	c.Conn = conn
	_ = conn.SetDeadline(time.Now().Add(s.opts.handshakeTimeout)) // before it has a slot, so that hurry's comes later
	ok, warn := s.slots.Take(c, conn.RemoteAddr())
	if warn {
		s.opts.Log.WithField("limit", s.opts.MaxConns).Warn("the limit of open SOCKS5 connections is reached; refusing more")
	}
	if !ok {
		s.metrics.Refused.WithLabelValues(reasonLimit).Inc()
		c.Abandon()
		return nil
	}
	return c
}

// serve handles one admitted connection. The relay, which may last for days,
// runs directly below it: everything else happens in calls that have returned
// by then, so that the stack can shrink while nothing moves.
func (s *Server) serve(ctx context.Context, c *client) {
	if s.prepare(ctx, c) {
		err := s.opts.Forwarder.Forward(c.Context(), &c.Flow, c.answer)
		c.Log(s.opts.Log, s.opts.AccessLog, err)
		s.finish(c)
	}
}

// prepare performs the handshake and prepares c for its dial. It returns false
// if c has ended or was handed over.
func (s *Server) prepare(ctx context.Context, c *client) bool {
	stop := context.AfterFunc(ctx, func() { _ = c.Conn.Close() })
	req, err := s.handshake(ctx, c.Conn)
	stop()
	switch why := s.slots.Serve(c); {
	case why == admission.ErrEvicted:
		err = refused(reasonEvicted, nil, errEvicted)
	case why != nil && err == nil:
		err = s.full()
	}
	switch {
	case s.handOver(c, err):
		return false
	case err != nil:
		s.refuse(c.Conn, err)
		s.finish(c)
		return false
	}
	_ = c.Conn.SetDeadline(time.Time{})
	c.request(ctx, req)
	return true
}

// full is the refusal of a client that descriptors may not suffice for.
func (s *Server) full() error {
	s.opts.Log.WithField("limit", admission.ShareOut(s.opts.Descriptors).Relayed).Warn("as many SOCKS5 connections are served as descriptors (ulimit -n) allow; refusing more")
	return refused(reasonLimit, replyTo(replyGeneral), admission.ErrFull)
}

// finish ends a connection that was not handed over.
func (s *Server) finish(c *client) {
	c.Finish()
	s.slots.Release(c)
}

// handOver gives c to Options.Other if err says that c speaks HTTP.
func (s *Server) handOver(c *client, err error) bool {
	var r *refusal
	if s.opts.Other == nil || !errors.As(err, &r) || r.reason != reasonHTTP {
		return false
	}
	s.slots.Release(c)
	_ = c.Conn.SetDeadline(time.Time{})
	s.opts.Other(tunnel.Unread(c.Conn, []byte{r.first}))
	return true
}

// hurry gives every unfinished handshake at most drainHandshake.
func (s *Server) hurry() {
	deadline := time.Now().Add(drainHandshake)
	s.slots.Waiting(func(c *client) { _ = c.Conn.SetDeadline(deadline) })
}
