// Package frontend accepts connections and tells what each carries: the native
// link, gRPC or HTTP CONNECT, by ALPN, and where that says nothing by the first
// bytes. So one listener serves every kind of client, and agents of both kinds.
package frontend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/admission"
	"konnectivity/tunnel"
)

const (
	// HandshakeTimeout bounds everything before a connection is known to want
	// something: TLS, the first bytes, the request's header. Together with
	// MaxConns it bounds what silent clients can hold.
	HandshakeTimeout = 10 * time.Second

	// MaxConns is how many connections one listener holds at once by default.
	// It is well above what one process has descriptors and memory for in
	// practice; it stops a flood, not a busy day.
	MaxConns = 65536

	// drainAccept is how long a listener is kept open once it is drained: what
	// the kernel has queued then would be reset with it.
	drainAccept = 100 * time.Millisecond

	// drainHandshake is how long a handshake may go on once its listener is
	// drained. Its client chose this server when it could; to cut it off would
	// fail a request that nobody retries.
	drainHandshake = 3 * time.Second
)

// Handler takes a connection that carries a known protocol and returns when it
// has ended; the frontend closes it then. When ctx ends it must end soon. It
// calls c.Begin once the peer has shown that it means it.
type Handler func(ctx context.Context, c *Conn)

// Metrics is told of connections; listener is Config.Name. Its methods must not
// block.
type Metrics interface {
	Connection(listener string, delta int)
	// Rejected has one of the reasons limit, tls, timeout, protocol, closed.
	Rejected(listener, reason string)
}

// Config is what a Frontend serves. A nil handler is a protocol that it does
// not serve and does not offer; there must be one.
type Config struct {
	Name string // "clients" or "agents": in logs and metrics

	// TLS makes the listener's configuration for the protocols to offer,
	// most wanted first; nil serves without TLS.
	TLS func(nextProtos ...string) *tls.Config

	// Prepare, if set, wraps a raw connection before TLS. Without TLS it is
	// not called.
	Prepare func(net.Conn) net.Conn

	LinkALPN string // what the link is called in ALPN
	Link     Handler
	GRPC     Handler
	Connect  Handler

	HandshakeTimeout time.Duration // 0: HandshakeTimeout
	MaxConns         int           // 0: MaxConns
	Metrics          Metrics       // nil: none
	Log              logrus.FieldLogger
}

// Frontend serves any number of listeners in the same way. Its methods may be
// called from any goroutine.
type Frontend struct {
	cfg   Config
	tls   *tls.Config
	slots chan struct{}
	warn  throttle

	drained  chan struct{} // closed by Drain
	drainOne sync.Once
}

// New returns a Frontend.
func New(cfg Config) (*Frontend, error) {
	if cfg.Link == nil && cfg.GRPC == nil && cfg.Connect == nil {
		return nil, errors.New("a listener that serves no protocol")
	}
	if cfg.HandshakeTimeout <= 0 {
		cfg.HandshakeTimeout = HandshakeTimeout
	}
	if cfg.MaxConns <= 0 {
		cfg.MaxConns = MaxConns
	}
	if cfg.Metrics == nil {
		cfg.Metrics = noMetrics{}
	}
	f := &Frontend{cfg: cfg, slots: make(chan struct{}, cfg.MaxConns), drained: make(chan struct{})}
	if cfg.TLS != nil {
		f.tls = cfg.TLS(f.protocols()...)
	}
	return f, nil
}

// protocols is what is offered by ALPN. The server's order decides. http/1.1
// stands before h2, since whoever offers both is an HTTP client that wants
// CONNECT, which is not served over HTTP/2; gRPC offers h2 alone.
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
// when every connection it accepted has ended: nil in the first two cases.
// It closes l. ctx is the life of the connections: when it ends they are cut,
// and so they are when l fails, for the failure to be told at once.
func (f *Frontend) Serve(ctx context.Context, l net.Listener) error {
	life, cut := context.WithCancelCause(ctx)
	defer cut(nil)
	var conns sync.WaitGroup
	defer conns.Wait()
	accepting, stop := context.WithCancel(life)
	var closer sync.WaitGroup
	closer.Go(func() {
		select {
		case <-f.drained:
			pause(life, drainAccept)
			stop() // first, so that the closing is known to be no failure
		case <-accepting.Done():
		}
		_ = l.Close()
	})
	acceptor := admission.Acceptor{What: "connections of " + f.cfg.Name, Log: f.cfg.Log}
	err := acceptor.Run(accepting, l, func(raw net.Conn) { f.take(life, raw, &conns) })
	if err != nil {
		err = fmt.Errorf("the listener for %s on %s failed: %w", f.cfg.Name, l.Addr(), err)
		cut(err)
	}
	stop()
	closer.Wait()
	return err
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// Drain makes every Serve stop accepting within drainAccept; connections that
// have not begun then have drainHandshake to do so, and are served like others
// if they do. It does not wait and may be called more than once.
func (f *Frontend) Drain() { f.drainOne.Do(func() { close(f.drained) }) }

func (f *Frontend) ended(ctx context.Context) bool {
	select {
	case <-f.drained:
		return true
	default:
		return ctx.Err() != nil
	}
}

// take serves a connection if there is room for it.
func (f *Frontend) take(ctx context.Context, raw net.Conn, conns *sync.WaitGroup) {
	select {
	case f.slots <- struct{}{}:
	default:
		f.cfg.Metrics.Rejected(f.cfg.Name, "limit")
		f.warn.log(f.cfg.Log, fmt.Sprintf("%d connections of %s are open, which is the limit; more are refused", f.cfg.MaxConns, f.cfg.Name))
		_ = raw.Close()
		return
	}
	f.cfg.Metrics.Connection(f.cfg.Name, 1)
	conns.Go(func() {
		defer func() {
			f.cfg.Metrics.Connection(f.cfg.Name, -1)
			<-f.slots
		}()
		f.serve(ctx, raw)
	})
}

// serve is one connection's life.
func (f *Frontend) serve(ctx context.Context, raw net.Conn) {
	if f.tls != nil {
		raw = tunnel.Wrap(raw) // for TLS to hear of resets
		if f.cfg.Prepare != nil {
			raw = f.cfg.Prepare(raw)
		}
	}
	_ = raw.SetDeadline(time.Now().Add(f.cfg.HandshakeTimeout))
	c := &Conn{front: f, raw: raw}
	defer c.finish()
	c.uncut = context.AfterFunc(ctx, c.cut)
	c.drain = make(chan struct{})
	c.watch.Go(c.hurry)
	handler, err := c.recognise(ctx)
	if err != nil {
		c.reject(err)
		return
	}
	handler(ctx, c)
}

type noMetrics struct{}

func (noMetrics) Connection(string, int)  {}
func (noMetrics) Rejected(string, string) {}
