package transparent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/access"
	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

// defaultMaxConns bounds what a hostile neighbour can make the process hold.
const defaultMaxConns = 10000

// Options configures a Server. Only Forwarder is required.
type Options struct {
	// Forwarder dials what clients meant to reach and relays.
	Forwarder *tunnel.Forwarder

	MaxConns    int           // open connections; 0 means defaultMaxConns
	Descriptors int           // that the connections are to make do with; 0: no bound
	Drain       time.Duration // how long open connections may take to finish; 0 cuts them at once

	// AccessLog logs one line for each connection at info instead of debug.
	AccessLog bool

	Log        logrus.FieldLogger    // nil discards
	Registerer prometheus.Registerer // nil registers no metrics
}

// Server serves redirected connections. It may serve any number of listeners;
// MaxConns counts the connections of all.
type Server struct {
	opts     Options
	metrics  *access.Metrics
	slots    *admission.Slots[*client]
	original func(net.Conn) (netip.AddrPort, error) // tests redirect nothing
}

// New checks the options and registers the metrics.
func New(o Options) (*Server, error) {
	if o.Forwarder == nil {
		return nil, errors.New("transparent: no forwarder given")
	}
	if o.MaxConns < 0 || o.Descriptors < 0 || o.Drain < 0 {
		return nil, errors.New("transparent: timeouts and limits cannot be negative")
	}
	if o.MaxConns == 0 {
		o.MaxConns = defaultMaxConns
	}
	o.MaxConns = admission.AtMost(o.MaxConns, admission.ShareOut(o.Descriptors).Relayed)
	if o.Log == nil {
		o.Log = logging.Discard()
	}
	slots := admission.NewSlots[*client](admission.Limits{Open: o.MaxConns})
	m, err := access.NewMetrics(o.Registerer, names, slots.Count)
	if err != nil {
		return nil, fmt.Errorf("transparent: register metrics: %w", err)
	}
	return &Server{opts: o, metrics: m, slots: slots, original: original}, nil
}

// Serve accepts connections from ln, which it closes, until ctx ends. It then
// gives open connections the time of Options.Drain, resets those that are left,
// and returns once every goroutine it started has ended: nil after ctx ended,
// else why accepting failed for good. It survives running out of descriptors.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	accept := admission.Acceptor{What: "redirected connections", Log: s.opts.Log}
	return accept.Serve(ctx, ln, admission.Drain{Time: s.opts.Drain}, func(conn net.Conn) func(context.Context) {
		if c := s.admit(conn); c != nil {
			return func(work context.Context) { s.serve(work, c, conn) }
		}
		return nil
	})
}

// admit returns conn with a slot, or refuses it and returns nil. Who comes here
// has nothing left to say before its dial, so nobody waits and can be evicted.
func (s *Server) admit(conn net.Conn) *client {
	c := &client{server: s}
	c.Conn = tunnel.Wrap(conn)
	ok, warn := s.slots.Take(c, conn.RemoteAddr())
	if warn {
		s.opts.Log.WithField("limit", s.opts.MaxConns).Warn("the limit of open redirected connections is reached; refusing more")
	}
	if !ok {
		s.metrics.Refused.WithLabelValues(reasonLimit).Inc()
		c.Abandon()
		return nil
	}
	_ = s.slots.Serve(c) // nobody can have evicted it
	return c
}

// serve handles one admitted connection. The relay, which may last for days,
// runs directly below it: everything else happens in calls that have returned
// by then, so that the stack can shrink while nothing moves.
func (s *Server) serve(ctx context.Context, c *client, conn net.Conn) {
	if s.prepare(ctx, c, conn) {
		err := s.opts.Forwarder.Forward(c.Context(), &c.Flow, c.answer)
		c.Log(s.opts.Log, s.opts.AccessLog, err)
		c.Finish()
		s.slots.Release(c)
	}
}

// prepare finds out where a connection was to go. It returns false if c has
// ended.
func (s *Server) prepare(ctx context.Context, c *client, conn net.Conn) bool {
	to, err := s.original(conn)
	if err == nil && to == localAddress(conn) {
		err = errors.New("it was made to this port itself")
	}
	if err != nil {
		s.metrics.Refused.WithLabelValues(reasonNotRedirected).Inc()
		s.opts.Log.WithError(err).WithField("client", conn.RemoteAddr().String()).Debug("connection refused: it was not redirected")
		_ = c.Conn.Reset(err)
		s.slots.Release(c)
		return false
	}
	c.request(ctx, to.String())
	return true
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
