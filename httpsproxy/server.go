package httpsproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

const (
	// defaultHandshakeTimeout bounds the reading of a request's header. Genuine
	// clients take milliseconds.
	defaultHandshakeTimeout = 10 * time.Second

	// defaultKeepAlive is how long a client's connection may wait for its next
	// request; longer than clients keep theirs.
	defaultKeepAlive = 2 * time.Minute

	// defaultResponseTimeout bounds the wait for a response's header once the
	// request was sent. It is long, since a slow answer is legitimate, but
	// bounded, since a proxy on the way may never answer.
	defaultResponseTimeout = 5 * time.Minute

	// DefaultMaxConns bounds what a hostile neighbour can make the process
	// hold: a connection costs about 20 KiB and a descriptor.
	DefaultMaxConns = 4096

	// strangerBytes is the cost of a connection before its first request, and
	// strangersBytes the bound for all of them together.
	strangerBytes  = 20 << 10
	strangersBytes = 32 << 20

	// drainHandshake is how long a client that has just connected may take to
	// send its request once Serve was asked to end.
	drainHandshake = time.Second

	// maxHeader bounds a request's header, at least as strictly as most
	// servers.
	maxHeader = 64 << 10
)

// Options configures a Server. Connect and Transport are required.
type Options struct {
	// Connect dials what CONNECT asks for and relays. Its Bounds, Total
	// and Observers also apply to upgraded connections; its Idle, Total,
	// DialTimeout and Observers also to plain exchanges, each of which is
	// reported as a connection for as long as it lasts, with the bytes of its
	// content. A dial is reported for the first exchange on a connection only.
	// Requests carry the Front "connect", "forward" or "upgrade".
	Connect *tunnel.Forwarder

	// Forward reaches the destinations of plain http requests, and the
	// customer proxies that Transport sends them by. The context of a dial ends
	// with the request, or after Connect's DialTimeout.
	Forward tunnel.Dialer

	// Transport carries plain http requests: its Proxy says which customer
	// proxy a request goes through, with user and password in the URL. The
	// Server uses a copy that dials by Forward, with its own limits and
	// timeouts and never the environment's proxies.
	Transport *http.Transport

	// Self, if set, says whether a client that asks for address, host:port, means
	// this process. Plain requests for it are refused here, CONNECT by Connect's
	// Dialer. Without it, only where a request came in is this process.
	Self func(address string) bool

	// Credentials, if set, are required of every request, as Basic
	// Proxy-Authorization.
	Credentials Checker

	handshakeTimeout time.Duration // 0 means defaultHandshakeTimeout
	keepAlive        time.Duration // 0 means defaultKeepAlive
	responseTimeout  time.Duration // 0 means defaultResponseTimeout
	MaxConns         int           // open client connections; 0 means DefaultMaxConns
	Descriptors      int           // that the connections are to make do with; 0: no bound
	Drain            time.Duration // how long open requests may take to finish; 0 cuts them at once

	// AccessLog logs one line for each request at info instead of debug.
	AccessLog bool

	Log        logrus.FieldLogger    // nil discards
	Registerer prometheus.Registerer // nil registers no metrics
}

// Server is the HTTP(S) front. It may serve any number of listeners and
// connections at once; MaxConns counts all of them.
type Server struct {
	opts      Options
	metrics   *metrics
	slots     *admission.Slots[*client]
	transport *http.Transport
	forward   http.Handler
	http      *http.Server
	pseudonym string        // in Via; unique, so that a loop can be told from a chain
	halfClose time.Duration // halfCloseTime
}

// New checks the options and registers the metrics. It starts nothing.
func New(o Options) (*Server, error) {
	switch {
	case o.Connect == nil || o.Connect.Dialer == nil:
		return nil, errors.New("httpsproxy: no forwarder for CONNECT given")
	case o.Forward == nil || o.Transport == nil:
		return nil, errors.New("httpsproxy: no dialer or no transport for plain requests given")
	case min(o.handshakeTimeout, o.keepAlive, o.responseTimeout, o.Drain) < 0 || min(o.MaxConns, o.Descriptors) < 0:
		return nil, errors.New("httpsproxy: timeouts and limits cannot be negative")
	}
	o.setDefaults()
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, fmt.Errorf("httpsproxy: register metrics: %w", err)
	}
	s := &Server{opts: o, metrics: m, slots: newSlots(o.MaxConns, admission.ShareOut(o.Descriptors)), pseudonym: "konnectivity-" + tunnel.NewID(), halfClose: halfCloseTime}
	s.transport = s.newTransport()
	s.forward = s.newForward()
	s.http = s.newHTTP()
	return s, nil
}

func (o *Options) setDefaults() {
	orElse := func(d *time.Duration, otherwise time.Duration) {
		if *d == 0 {
			*d = otherwise
		}
	}
	orElse(&o.handshakeTimeout, defaultHandshakeTimeout)
	orElse(&o.keepAlive, defaultKeepAlive)
	orElse(&o.responseTimeout, defaultResponseTimeout)
	if o.MaxConns == 0 {
		o.MaxConns = DefaultMaxConns
	}
	if o.Log == nil {
		o.Log = logging.Discard()
	}
}

// Serve accepts connections from ln, which it closes, until ctx ends. It then
// takes no new requests, gives open requests and tunnels the time of
// Options.Drain, resets those that are left, and returns once everything it
// started has ended: nil after ctx ended, else why accepting failed for good.
// It survives running out of descriptors.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	// Connections outlive ctx by the drain, so they have a context of their own.
	work, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	var conns sync.WaitGroup
	leave := make(chan struct{})
	accept := admission.Acceptor{What: "HTTP proxy connections", Log: s.opts.Log, MakeRoom: s.slots.MakeRoom}
	err := accept.Run(ctx, ln, func(conn net.Conn) {
		conns.Add(1)
		s.start(work, leave, tunnel.Wrap(conn), conns.Done)
	})
	close(leave)
	s.dismiss(leave, false)
	hurry := time.AfterFunc(drainHandshake, func() { s.dismiss(leave, true) })
	defer hurry.Stop()
	defer accept.CutAfter(s.opts.Drain, func() { cut(errShutdown) }).Stop()
	conns.Wait()
	s.transport.CloseIdleConnections()
	return err
}

// CloseIdle closes idle connections to destinations; those in use continue. Any
// goroutine may call it.
func (s *Server) CloseIdle() { s.transport.CloseIdleConnections() }

// dismiss closes the connections that leave with leave and wait for a request:
// those that have had one already or, if fresh, the others.
func (s *Server) dismiss(leave <-chan struct{}, fresh bool) {
	s.slots.Waiting(func(c *client) {
		if c.leave == leave && c.served.Load() != fresh {
			_ = c.conn.Close()
		}
	})
}

// errShutdown is the error of a connection that is cut because it outlasts the
// drain.
var errShutdown = &tunnel.ResetError{Code: tunnel.CodeShutdown}

// serveConn serves one connection that somebody else accepted, and returns
// when it has ended; conn is closed then. When ctx ends it is cut short.
func (s *Server) serveConn(ctx context.Context, conn tunnel.Conn) {
	ended := make(chan struct{})
	s.start(ctx, ctx.Done(), conn, func() { close(ended) })
	<-ended
}

func newSlots(open int, share admission.Shares) *admission.Slots[*client] {
	return admission.NewSlots[*client](admission.Limits{
		Open: open, Served: share.Relayed, Waiting: share.Strangers, Bytes: strangersBytes, Each: strangerBytes,
	})
}
