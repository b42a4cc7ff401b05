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
	// something: TLS, the first bytes, the request's header.
	HandshakeTimeout = 10 * time.Second

	// MaxConns is how many connections that have begun one listener holds at
	// once by default. It is well above what one process has descriptors and
	// memory for in practice; it stops a flood, not a busy day.
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
	// Rejected has one of the reasons limit, evicted, tls, timeout, protocol,
	// closed.
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
	MaxConns         int           // that have begun; 0: MaxConns
	Strangers        *Strangers    // that have not, of all frontends of the process; nil: of its own
	Metrics          Metrics       // nil: none
	Log              logrus.FieldLogger
}

// Frontend serves any number of listeners in the same way. Its methods may be
// called from any goroutine.
type Frontend struct {
	cfg   Config
	tls   *tls.Config
	slots chan struct{}

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
	if cfg.Strangers == nil {
		cfg.Strangers = NewStrangers(admission.Descriptors())
	}
	f := &Frontend{cfg: cfg, slots: make(chan struct{}, cfg.MaxConns), drained: make(chan struct{})}
	if cfg.TLS != nil {
		f.tls = metered(cfg.TLS(f.protocols()...))
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
	acceptor := admission.Acceptor{What: "connections of " + f.cfg.Name, Log: f.cfg.Log, MakeRoom: f.cfg.Strangers.slots.MakeRoom}
	err := acceptor.Run(accepting, l, func(raw net.Conn) { f.take(life, raw, &conns) })
	if err != nil {
		err = fmt.Errorf("the listener for %s on %s failed: %w", f.cfg.Name, l.Addr(), err)
		cut(err)
	}
	stop()
	closer.Wait()
	f.await(life, &conns)
	return err
}

// await returns when all connections have ended. Once life ends it cuts those
// that have not begun; the others' handlers see to themselves.
func (f *Frontend) await(life context.Context, conns *sync.WaitGroup) {
	over := make(chan struct{})
	var cutter sync.WaitGroup
	cutter.Go(func() {
		select {
		case <-life.Done():
			f.cfg.Strangers.each(f, func(c *Conn) {
				if c.life.Err() != nil {
					c.cut()
				}
			})
		case <-over:
		}
	})
	conns.Wait()
	close(over)
	cutter.Wait()
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
func (f *Frontend) Drain() {
	f.drainOne.Do(func() {
		close(f.drained)
		f.cfg.Strangers.each(f, (*Conn).hurry)
	})
}

func (f *Frontend) ended(ctx context.Context) bool {
	select {
	case <-f.drained:
		return true
	default:
		return ctx.Err() != nil
	}
}

// take serves a connection, as a stranger at first.
func (f *Frontend) take(life context.Context, raw net.Conn, conns *sync.WaitGroup) {
	c := &Conn{front: f, raw: tunnel.Wrap(raw), life: life}
	if ok, _ := f.cfg.Strangers.slots.Take(c, raw.RemoteAddr()); !ok {
		c.cut() // only where there is not one place
		return
	}
	c.bound(f.cfg.HandshakeTimeout)
	f.cfg.Metrics.Connection(f.cfg.Name, 1)
	conns.Go(func() {
		defer f.cfg.Metrics.Connection(f.cfg.Name, -1)
		f.serve(life, c)
	})
}

// serve is one connection's life.
func (f *Frontend) serve(ctx context.Context, c *Conn) {
	defer c.finish()
	handler, err := c.recognise()
	if err != nil {
		c.reject(err)
		return
	}
	handler(ctx, c)
}

type noMetrics struct{}

func (noMetrics) Connection(string, int)  {}
func (noMetrics) Rejected(string, string) {}
