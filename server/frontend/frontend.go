// Package frontend accepts connections and recognises their protocols: the native
// link, gRPC or HTTP CONNECT. It looks at ALPN and, where that says nothing, at the
// first bytes. So one listener serves every kind of client, and
// agents of both kinds.
//
// A Frontend owns a connection from accept until its handler has returned, and the
// function that this gave to Conn.Go. The server makes one for each listener, and hands it the
// handlers.
package frontend

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/admission"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

const (
	// HandshakeTimeout bounds everything before a request: TLS, the first
	// bytes, the header.
	HandshakeTimeout = 10 * time.Second

	// MaxConns is how many connections that have begun one listener holds at
	// once by default. It is well above what one process has descriptors and
	// memory for in practice; it stops a flood, but not ordinary heavy use.
	MaxConns = 65536

	// drainAccept is how long a listener stays open once it is drained: closing
	// it resets what the kernel has queued. Time for which the process did not run,
	// and accepted nothing, hardly counts.
	drainAccept = 100 * time.Millisecond

	// drainHandshake is how long a handshake may go on once its listener is
	// drained. Its client chose this server in good faith, and cutting it off
	// would fail a request that is not retried.
	drainHandshake = 3 * time.Second
)

// Handler serves a connection with a known protocol and returns when it has
// ended, or once c.Go has a function to serve the rest of it; the frontend closes it
// after that. When ctx ends both must end soon. It calls c.Begin once the
// peer has proved itself.
type Handler func(ctx context.Context, c *Conn)

// Metrics counts connections; listener is Config.Name. Its methods must not
// block.
type Metrics interface {
	Connection(listener string, delta int)
	// Rejected has one of the reasons limit, evicted, proxy, tls, timeout,
	// protocol, refused, closed.
	Rejected(listener, reason string)
}

// Config configures a Frontend. A protocol whose handler is nil is neither
// served nor offered; at least one must be set.
type Config struct {
	Name string // "clients" or "agents", for logs and metrics

	// TLS returns the listener's configuration for the protocols to offer, the
	// preferred one first; nil serves without TLS.
	TLS func(nextProtos ...string) *tls.Config

	// Owner returns the owner of a connection without TLS, as Own records it with
	// TLS, or why it is refused; nil: connections have no owner.
	Owner func() (who any, err error)

	// Prepare, if set, wraps a raw connection before TLS; what it returns has a
	// method NetConn, for Own. Without TLS it is not called.
	Prepare func(net.Conn) net.Conn

	// Proxies are the load balancers whose connections begin with a PROXY
	// protocol header, which is believed. From all other addresses there must be
	// none. Needs TLS.
	Proxies admission.Networks

	LinkALPN string // the link's id in ALPN
	Link     Handler
	GRPC     Handler
	Connect  Handler

	handshakeTimeout time.Duration // 0: HandshakeTimeout
	Room             Room          // for connections that have begun, shared with other frontends; nil: for MaxConns of its own
	MaxConns         int           // 0 means MaxConns
	PreAuth          *PreAuth      // for connections that have not begun, shared by all frontends of the process
	Metrics          Metrics
	Log              logrus.FieldLogger

	// LogOf is the log for lines about a connection with that Owner; nil: Log. It
	// must not block.
	LogOf func(owner any) logrus.FieldLogger
}

// Frontend serves a listener. Its methods may be called from any goroutine.
type Frontend struct {
	cfg   Config
	tls   *tls.Config
	slots Room

	drained  chan struct{} // closed by Drain
	drainOne sync.Once
	stopped  chan struct{} // closed once Serve's listener is
}

// Room is for so many connections that have begun. Frontends may share one.
type Room chan struct{}

// Room is for the connections that have begun.
func (f *Frontend) Room() Room { return f.slots }

// New returns a Frontend.
func New(cfg Config) (*Frontend, error) {
	if cfg.Link == nil && cfg.GRPC == nil && cfg.Connect == nil {
		return nil, errors.New("a listener that serves no protocol")
	}
	if len(cfg.Proxies) > 0 && cfg.TLS == nil {
		return nil, errors.New("PROXY protocol headers are read on listeners with TLS only")
	}
	cfg.handshakeTimeout = cmp.Or(cfg.handshakeTimeout, HandshakeTimeout)
	cfg.MaxConns = cmp.Or(cfg.MaxConns, MaxConns)
	if cfg.Room == nil {
		cfg.Room = make(Room, cfg.MaxConns)
	}
	f := &Frontend{cfg: cfg, slots: cfg.Room, drained: make(chan struct{}), stopped: make(chan struct{})}
	if cfg.TLS != nil {
		f.tls = cfg.TLS(f.protocols()...)
	}
	return f, nil
}

// protocols returns the protocols to offer by ALPN. The server's order decides.
// http/1.1 comes before h2, since a client that offers both wants CONNECT,
// which is not served over HTTP/2; gRPC offers h2 alone.
func (f *Frontend) protocols() []string {
	var out []string
	if f.cfg.Link != nil {
		out = append(out, f.cfg.LinkALPN)
	}
	if f.cfg.Connect != nil {
		out = append(out, "http/1.1")
	}
	if f.cfg.GRPC != nil {
		out = append(out, "h2")
	}
	return out
}

// Serve accepts from l until Drain is called, ctx ends or l fails, and returns
// when every connection it accepted has ended: nil in the first two cases. It
// closes l. The connections are cut when ctx ends, and also when l fails, so
// that Serve can return the failure at once. It is called once.
func (f *Frontend) Serve(ctx context.Context, l net.Listener) error {
	life, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	accepting, stop := context.WithCancel(life)
	var conns, closer sync.WaitGroup
	closer.Go(func() {
		select {
		case <-f.drained:
			defer wait.Awake(drainAccept, stop)()
			<-accepting.Done()
		case <-accepting.Done():
		}
	})
	acceptor := admission.Acceptor{What: "connections of " + f.cfg.Name, Log: f.cfg.Log, MakeRoom: f.cfg.PreAuth.slots.MakeRoom}
	err := acceptor.Run(accepting, l, func(raw net.Conn) { f.take(life, raw, &conns) })
	close(f.stopped)
	if err != nil {
		err = fmt.Errorf("the listener for %s on %s failed: %w", f.cfg.Name, l.Addr(), err)
		cut(err)
	}
	closer.Wait()
	f.await(life, &conns)
	return err
}

// await returns when all connections have ended. Once life ends it cuts those
// that have not begun; the handlers of the others end by themselves.
func (f *Frontend) await(life context.Context, conns *sync.WaitGroup) {
	defer tunnel.After(life, func() { f.cfg.PreAuth.each(f, (*Conn).cut) })()
	conns.Wait()
}

// Drain makes Serve stop accepting within drainAccept; connections that
// have not begun have drainHandshake to do so, and if they do are served like
// others. It does not wait and may be called more than once.
func (f *Frontend) Drain() {
	f.drainOne.Do(func() {
		close(f.drained)
		f.cfg.PreAuth.each(f, (*Conn).hurry)
	})
}

// settleLook is how often Settle looks.
const settleLook = 10 * time.Millisecond

// Stopped is closed once Serve accepts nothing more, and its listener's port is free.
func (f *Frontend) Stopped() <-chan struct{} { return f.stopped }

// Settle returns after Drain, once Serve's listener is closed and every connection has
// begun or ended, or when ctx has ended.
func (f *Frontend) Settle(ctx context.Context) {
	select {
	case <-f.stopped:
	case <-ctx.Done():
	}
	for ctx.Err() == nil && f.waiting() > 0 {
		wait.For(ctx, settleLook)
	}
}

// waiting is how many connections have not begun.
func (f *Frontend) waiting() (n int) {
	f.cfg.PreAuth.each(f, func(*Conn) { n++ })
	return n
}

// take serves a connection, which has not begun.
func (f *Frontend) take(life context.Context, raw net.Conn, conns *sync.WaitGroup) {
	c := &Conn{front: f, raw: tunnel.Wrap(raw), remote: raw.RemoteAddr()}
	if ok, _ := f.cfg.PreAuth.slots.Take(c, c.remote); !ok {
		c.cut() // only if there is no place at all
		return
	}
	c.bound(f.cfg.handshakeTimeout)
	f.cfg.Metrics.Connection(f.cfg.Name, 1)
	conns.Go(func() {
		f.serve(life, c)
		if c.rest == nil {
			c.finish()
			return
		}
		conns.Go(c.serveRest) // here, not inside: the stack that it begins with is all that it keeps
	})
}

// serve handles one connection, as far as its handler does.
func (f *Frontend) serve(ctx context.Context, c *Conn) {
	handler, err := c.recognise()
	if err != nil {
		c.reject(err)
		return
	}
	handler(ctx, c)
}
