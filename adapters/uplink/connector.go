package uplink

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"konnectivity/internal/wait"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/race"
)

const (
	// listenTime is how long a refusal of our certificate may be under way.
	listenTime = 500 * time.Millisecond

	// http1 is the ALPN id of HTTP/1.1, which carries CONNECT (RFC 7301 §6).
	http1 = "http/1.1"
)

// quickRetries are the pauses before a server that has just worked is tried
// again; a request waits for them.
var quickRetries = [...]time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond}

func protocols(mode link.Mode) []string {
	switch mode {
	case link.Off:
		return []string{http1}
	case link.Require:
		return []string{link.ALPN}
	default:
		return []string{link.ALPN, http1}
	}
}

// ErrTalks is the error about a peer that speaks first, which no konnectivity
// server does.
var ErrTalks = errors.New("the server speaks before it is asked; it is no konnectivity server")

var errNoLink = errors.New("the server does not speak the link protocol; use --link=auto")

// handshaken is a TLS connection to the server, before anything was said on it.
type handshaken struct {
	*tls.Conn
	addr netip.AddrPort
}

// link says what ALPN chose.
func (h handshaken) link() bool { return h.ConnectionState().NegotiatedProtocol == link.ALPN }

// listen returns the refusal of a server without links, or nil if the server is
// silent for as long as bound: one that takes us waits for our request. The
// connection is as good as before.
func (h handshaken) listen(bound time.Duration) error {
	_ = h.SetReadDeadline(time.Now().Add(bound))
	_, err := h.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return h.SetReadDeadline(time.Time{})
	}
	if err == nil {
		err = ErrTalks
	}
	return err
}

// connector makes connections and sessions, which are their callers': TCP, TLS,
// and a greeting where the server speaks the link. Its methods may be called from
// any goroutine.
type connector struct {
	opt     Options
	tls     *tls.Config // one for all, so that sessions are resumed
	budget  *link.Budget
	hello   link.Hello
	servers *directory
	health  *health
	lost    lanes.Lost
	offer   func(*linkSession) // hands over a link that a connectSession found
}

// newConnector makes one whose links count in budget, and name features beside
// what they have by themselves.
func newConnector(opt Options, h *health, budget *link.Budget, features []string) *connector {
	c := &connector{opt: opt, tls: opt.TLS.Client(opt.ServerName, protocols(opt.Mode)...), budget: budget, servers: newDirectory(opt), health: h}
	c.hello = link.Hello{Role: link.RoleClient, Software: opt.Software, ID: tunnel.NewID(), Features: features}
	if opt.Lanes > 1 {
		c.hello.Features = append(c.hello.Features, link.FeatureLanes)
	}
	return c
}

// rush makes a session with the address that works first.
func (c *connector) rush(ctx context.Context) (netip.AddrPort, session, error) {
	h, l, err := c.open(ctx)
	switch {
	case err != nil:
		return netip.AddrPort{}, nil, err
	case l != nil:
		return l.addr, l, nil
	default:
		return h.addr, c.newConnectSession(h.addr, &h), nil
	}
}

// open connects to the address that works first: l is a link, or h is a connection
// to a server without links. A server that has just worked is tried again a few
// times within a second, since it may be one that is being replaced.
func (c *connector) open(ctx context.Context) (h handshaken, l *linkSession, err error) {
	for n := 0; ; n++ {
		h, err = c.connectAny(ctx)
		if err == nil && h.link() {
			l, err = c.linkOver(ctx, h)
		}
		if err == nil || n == len(quickRetries) || !c.health.good() || !wait.For(ctx, quickRetries[n]) {
			return h, l, err
		}
	}
}

// sessionAt makes a session to one address.
func (c *connector) sessionAt(ctx context.Context, addr netip.AddrPort) (session, error) {
	h, err := c.connectTo(ctx, addr)
	if err != nil {
		return nil, err
	}
	if h.link() {
		return linked(c.linkOver(ctx, h))
	}
	err = h.listen(listenTime)
	_ = h.NetConn().Close()
	if err != nil {
		return nil, err
	}
	c.health.note(nil)
	return c.newConnectSession(addr, nil), nil
}

// linkAt makes a link to one address.
func (c *connector) linkAt(ctx context.Context, addr netip.AddrPort) (session, error) {
	h, err := c.connectLink(ctx, addr)
	if err != nil {
		return nil, err
	}
	return linked(c.linkOver(ctx, h))
}

// linked makes l a session, or nil where there is none.
func linked(l *linkSession, err error) (session, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}

// linkOver makes a link of h, which it takes over.
func (c *connector) linkOver(ctx context.Context, h handshaken) (*linkSession, error) {
	first := func(ctx context.Context, group string) (*link.Session, error) { return c.greet(ctx, h, group) }
	lane := func(ctx context.Context, group string) (*link.Session, error) { return c.lane(ctx, h.addr, group) }
	g, err := lanes.Connect(ctx, &c.lost, c.opt.Lanes, first, lane)
	if err != nil {
		return nil, err
	}
	c.health.note(nil)
	return &linkSession{Group: g, addr: h.addr, since: time.Now(), id: tunnel.NewID()}, nil
}

// lane makes another link to one address, in a group.
func (c *connector) lane(ctx context.Context, addr netip.AddrPort, group string) (*link.Session, error) {
	h, err := c.connectLink(ctx, addr)
	if err != nil {
		return nil, err
	}
	return c.greet(ctx, h, group)
}

// connectLink makes a connection on which the server speaks the link.
func (c *connector) connectLink(ctx context.Context, addr netip.AddrPort) (handshaken, error) {
	h, err := c.connectTo(ctx, addr)
	if err == nil && !h.link() {
		_ = h.NetConn().Close()
		err = errNoLink
	}
	return h, err
}

// connectAny connects to one of the server's addresses. When all that are known fail,
// they are looked up anew, once.
func (c *connector) connectAny(ctx context.Context) (handshaken, error) {
	addrs, fresh, err := c.servers.addresses(ctx)
	if err != nil {
		return handshaken{}, err
	}
	h, err := c.race(ctx, addrs)
	switch {
	case err == nil:
		return h, nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded): // an address that swallows packets leaves no time to look them up
		c.servers.doubt()
		return h, err
	case fresh || ctx.Err() != nil: // a request that was given up says nothing about them
		return h, err
	}
	again, lookupErr := c.servers.resolve(ctx)
	if lookupErr != nil || sameSet(addrs, again) {
		return h, err
	}
	return c.race(ctx, again)
}

func sameSet(a, b []netip.AddrPort) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(addr netip.AddrPort) bool { return !slices.Contains(b, addr) })
}

// race connects to the address that works first. It connects to all by TCP, since most may
// lead nowhere, but lets race.MaxTries handshakes begin at once: further ones would only make
// servers slower that are slow. A handshake gives up its turn, and goes on, after half of the time
// that the server has: frozen servers accept connections and never answer, and must not keep all
// turns.
func (c *connector) race(ctx context.Context, addrs []netip.AddrPort) (handshaken, error) {
	turns := make(chan struct{}, race.MaxTries)
	h, _, err := race.Any(ctx, addrs, func(ctx context.Context, addr netip.AddrPort) (handshaken, error) {
		raw, err := c.reach(ctx, addr)
		if err != nil {
			return handshaken{}, err
		}
		select {
		case turns <- struct{}{}:
			late := time.AfterFunc(c.opt.ConnectTimeout/2, func() { <-turns })
			defer func() {
				if late.Stop() {
					<-turns
				}
			}()
			return c.admit(ctx, raw, addr)
		case <-ctx.Done():
			_ = raw.Close()
			return handshaken{}, ctx.Err()
		}
	})
	return h, err
}

// connectTo makes one connection to one address, TCP and TLS.
func (c *connector) connectTo(ctx context.Context, addr netip.AddrPort) (handshaken, error) {
	raw, err := c.reach(ctx, addr)
	if err != nil {
		return handshaken{}, err
	}
	return c.admit(ctx, raw, addr)
}

// admit makes the TLS handshake on raw, which it takes over, and wants a server as the mode does.
func (c *connector) admit(ctx context.Context, raw net.Conn, addr netip.AddrPort) (handshaken, error) {
	h, err := c.secure(ctx, raw, addr)
	if err == nil && c.opt.Mode == link.Require && !h.link() {
		err = errNoLink
	}
	if err != nil {
		_ = raw.Close()
		return handshaken{}, err
	}
	return h, nil
}

// reach connects by TCP.
func (c *connector) reach(ctx context.Context, addr netip.AddrPort) (net.Conn, error) {
	raw, err := c.opt.DialTCP(ctx, &net.Dialer{KeepAliveConfig: keepAlive, Control: c.opt.Path.Control}, addr.String())
	if err != nil {
		return nil, err
	}
	raw = tunnel.Wrap(raw)
	if c.opt.Mode != link.Off {
		raw = link.Buffered(raw)
	}
	return raw, nil
}

// secure makes the TLS handshake on raw. What it returns has the TLS state even
// if that fails.
func (c *connector) secure(ctx context.Context, raw net.Conn, addr netip.AddrPort) (handshaken, error) {
	conn := tls.Client(raw, c.tls)
	return handshaken{Conn: conn, addr: addr}, c.opt.Path.Secure(ctx, conn)
}

// greet makes a link of h, which it takes over, in a group.
func (c *connector) greet(ctx context.Context, h handshaken, group string) (_ *link.Session, err error) {
	hello := c.hello
	if hello.Token, err = c.opt.Token(); err != nil {
		_ = h.Close()
		return nil, err
	}
	hello.Group, hello.Lost = group, c.lost.IDs()
	return link.Connect(ctx, h.Conn, link.Config{Hello: hello, Budget: c.budget, Log: c.opt.Log})
}
