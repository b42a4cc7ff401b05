package httpsproxy

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/http"
	"time"

	"konnectivity/internal/front"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
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

	// waitingBytes is the cost of a connection before its first request.
	waitingBytes = 20 << 10

	// begunBytes is the cost of one that was idle and has begun another request, beyond the
	// request's. It is enough to tell these from idle ones, in whose place newcomers come.
	begunBytes = 4 << 10

	// maxHeader bounds a request's header, at least as strictly as most
	// servers.
	maxHeader = 64 << 10
)

// Options configures a Server. Forwarder, Forward and Transport are required.
type Options struct {
	// Forwarder dials the destinations of CONNECT and relays. Its Idle, Total and
	// Observers also apply to upgraded connections; these and its DialTimeout
	// also to plain exchanges. Observers see an exchange as a
	// connection that lasts as long as it does, with the bytes of its content, and
	// see the dial of a connection in its first exchange only. Requests carry the
	// Front "connect", "forward" or "upgrade".
	front.Options

	// Forward reaches the destinations of plain http requests, and the customer
	// proxies that Transport sends them by. The context of a dial ends with the
	// request, or after the Forwarder's DialTimeout.
	Forward tunnel.Dialer

	// Transport carries plain http requests: its Proxy says which customer
	// proxy a request goes through, with user and password in the URL. The
	// Server uses a copy that dials by Forward, with its own limits and
	// timeouts and never the environment's proxies.
	Transport *http.Transport

	// Self, if set, reports whether address, host:port, is this process to a
	// client that asks for it. Plain requests for it are refused here, CONNECT by
	// the Forwarder's Dialer. Without it, only where a request came in is this
	// process.
	Self func(address string) bool

	// Credentials, if set, are required of every request, as Basic
	// Proxy-Authorization.
	Credentials front.Checker

	handshakeTimeout time.Duration // 0 means defaultHandshakeTimeout
	keepAlive        time.Duration // 0 means defaultKeepAlive
	responseTimeout  time.Duration // 0 means defaultResponseTimeout
}

// Server is the HTTP(S) front. It may serve any number of listeners and
// connections at once; MaxConns counts all of them.
type Server struct {
	*front.Shell[*client]
	opts      Options
	transport *http.Transport
	brief     *http.Transport // the same, for requests that it would not send again
	forward   http.Handler
	http      *http.Server
	headers   *shares.Pool // of exchanges, in bytes
	pseudonym string       // in Via; unique, so that a loop can be told from a chain
}

// New checks the options and registers the metrics. It starts nothing.
func New(o Options) (*Server, error) {
	if o.Forward == nil || o.Transport == nil {
		return nil, errors.New("httpsproxy: no dialer or no transport for plain requests given")
	}
	o.handshakeTimeout = cmp.Or(o.handshakeTimeout, defaultHandshakeTimeout)
	o.keepAlive = cmp.Or(o.keepAlive, defaultKeepAlive)
	o.responseTimeout = cmp.Or(o.responseTimeout, defaultResponseTimeout)
	shell, err := front.New[*client](o.Options, front.Traits{
		Name: "httpsproxy", Connections: "HTTP proxy connections", MaxConns: DefaultMaxConns, Waiting: waitingBytes, Metrics: names,
	})
	if err != nil {
		return nil, err
	}
	s := &Server{Shell: shell, opts: o, pseudonym: "konnectivity-" + tunnel.NewID(), headers: newHeaderRoom()}
	s.transport, s.brief = s.newTransports()
	s.forward = s.newForward()
	s.http = s.newHTTP()
	return s, nil
}

// Serve accepts connections from ln, which it closes, until ctx ends. It then
// takes no new requests, gives open requests and tunnels the time of
// Options.Drain, resets those that are left, and returns once everything it
// started has ended: nil after ctx ended, else why accepting failed for good.
// It survives running out of descriptors.
func (s *Server) Serve(ctx context.Context, ln net.Listener) error {
	drained := make(chan struct{})
	var hurry *time.Timer
	err := s.Shell.Serve(ctx, ln, func(ctx context.Context, conn net.Conn, ended func()) {
		s.start(ctx, drained, tunnel.Wrap(conn), ended)
	}, func() {
		close(drained)
		s.dismiss(drained, false)
		hurry = time.AfterFunc(front.DrainHandshake, func() { s.dismiss(drained, true) })
	})
	hurry.Stop()
	s.CloseIdle()
	return err
}

// CloseIdle closes idle connections to destinations; those in use continue. Any
// goroutine may call it.
func (s *Server) CloseIdle() {
	s.transport.CloseIdleConnections()
	s.brief.CloseIdleConnections()
}

// dismiss closes the connections of a drained listener that wait for a request:
// those that have had one already or, if fresh, the others.
func (s *Server) dismiss(drained <-chan struct{}, fresh bool) {
	s.Slots.Waiting(func(c *client) {
		if c.drained == drained && c.served.Load() != fresh {
			_ = c.conn.Close()
			c.dismiss()
		}
	})
}
