package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"konnectivity/agent/egress"
	"konnectivity/internal/tlsreload"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

const (
	protocolLink = "link"
	protocolGRPC = "grpc"
)

// dialTimeout bounds the TCP part of an attempt, so that an address that swallows
// packets costs half of what it may. Tests shorten it.
var dialTimeout = 5 * time.Second

// connectError says at which stage an attempt failed: dial, tls, token or refused.
type connectError struct {
	stage   string
	err     error
	trusted string // as in Options
}

func (e *connectError) Error() string {
	who, trusted := "server", e.trusted
	if e.stage == "dial" {
		who, trusted = "proxy on the way to the server", tlsreload.SystemCAs
	}
	if untrusted := tlsreload.Untrusted(e.err, trusted); untrusted != "" {
		return "the " + who + " is not trusted: " + untrusted
	}
	hint := ""
	switch {
	case tlsreload.RefusedByPeer(e.err):
		hint = "; it does not take this agent's certificate, whose role may not be agent (with --api-server: client): see the server's log"
	case tlsreload.OutOfTimeForPeer(e.err):
		hint = "; by the server's clock, this agent's certificate has expired or is not valid yet: renew it, or correct that clock"
	case tlsreload.NameUnknown(e.err):
		hint = "; the server does not know the name it was asked for: check --server-name (by default the host of --proxy-server-host), and whether this cluster's tenant there was removed or is broken"
	}
	told := map[string]string{
		"dial": "cannot reach the server", "tls": "the TLS handshake failed", "token": "there is no token to send",
		"refused": "the server refused this agent",
	}[e.stage]
	if e.stage == "refused" && errors.Is(e.err, context.DeadlineExceeded) {
		told = "the server does not answer"
	}
	return told + ": " + e.err.Error() + hint
}

func (e *connectError) Unwrap() error { return e.err }

// connector makes sessions over TLS, of the kind that ALPN agrees on.
type connector struct {
	opts      Options
	forwarder *tunnel.Forwarder
	metrics   *metrics
	ends      *resume.Manager
	protos    []string
	clients   link.Clients
	path      link.Path
	lost      lanes.Lost

	mu      sync.Mutex
	configs map[string]*tls.Config // by server name, so that sessions resume
}

func newConnector(opts Options, forwarder *tunnel.Forwarder, m *metrics, ends *resume.Manager) *connector {
	return &connector{
		opts: opts, forwarder: forwarder, metrics: m, ends: ends, protos: protocols(opts.Link, opts.ALPN),
		configs: map[string]*tls.Config{},
	}
}

// protocols is what ALPN offers. The operator's own come last: they steer load
// balancers, which look at the whole list, and mean gRPC if a server takes one.
func protocols(mode link.Mode, extra []string) []string {
	var offer []string
	switch mode {
	case link.Off:
		offer = []string{"h2"}
	case link.Require:
		offer = []string{link.ALPN}
	default:
		offer = []string{link.ALPN, "h2"}
	}
	for _, proto := range extra {
		if !slices.Contains(offer, proto) {
			offer = append(offer, proto)
		}
	}
	return offer
}

// secure connects to a server, by TCP and TLS.
func (c *connector) secure(ctx context.Context, to address) (*tls.Conn, error) {
	raw, err := c.dial(ctx, to)
	if err != nil {
		return nil, &connectError{stage: "dial", err: err}
	}
	conn := tls.Client(link.Buffered(raw), c.config(c.serverName(to)))
	if err := c.path.Secure(ctx, conn); err != nil {
		_ = raw.Close()
		if link.NoProtocol(err) {
			return nil, &connectError{stage: "refused", err: c.noProtocol(err)}
		}
		return nil, &connectError{"tls", err, c.opts.Trusted}
	}
	return conn, nil
}

func (c *connector) connect(ctx context.Context, to address) (session, error) {
	conn, err := c.secure(ctx, to)
	if err != nil {
		return nil, err
	}
	var s session
	switch proto := conn.ConnectionState().NegotiatedProtocol; {
	case proto == link.ALPN:
		s, err = c.connectLink(ctx, conn, to)
	case c.opts.Link == link.Require:
		err = fmt.Errorf("it speaks no %s, which --link=require demands", link.ALPN)
	default:
		s, err = c.connectLegacy(ctx, conn, to)
	}
	if err == nil && len(s.ServerID()) > MaxIdentity { // it is in every line of the log about the server
		_ = s.Close()
		err = fmt.Errorf("the server's id has %d bytes: at most %d are accepted", len(s.ServerID()), MaxIdentity)
	}
	if err != nil {
		_ = conn.Close()
		return nil, refusal(err)
	}
	return s, nil
}

// refusal is the error of an attempt that got as far as TLS: the server's doing, but
// for a token that could not be read.
func refusal(err error) error {
	if typed := (*connectError)(nil); errors.As(err, &typed) {
		return typed
	}
	return &connectError{stage: "refused", err: err}
}

// noProtocol says what to do about a server that takes nothing we offer.
func (c *connector) noProtocol(err error) error {
	switch c.opts.Link {
	case link.Require:
		return fmt.Errorf("it speaks no %s, which --link=require here demands: %w", link.ALPN, err)
	case link.Off:
		return fmt.Errorf("it does not take gRPC; if it runs with --link=require, --link=off here cannot work: %w", err)
	default:
		return err
	}
}

func (c *connector) dial(ctx context.Context, to address) (net.Conn, error) {
	dialer := net.Dialer{Control: c.path.Control}
	if to.proxy != nil { // whose name is looked up first; a dead name server alone takes 5 s
		return egress.DialProxy(ctx, to.proxy, to.dial, dialer, c.path.Secure)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	return dialer.DialContext(ctx, "tcp", to.dial)
}

// serverName is the name to ask the server at to for, which its certificate
// must have.
func (c *connector) serverName(to address) string { return cmp.Or(c.opts.ServerName, to.host) }

func (c *connector) config(name string) *tls.Config {
	c.mu.Lock()
	defer c.mu.Unlock()
	config := c.configs[name]
	if config == nil {
		config = c.opts.TLS(name, c.protos...)
		c.configs[name] = config
	}
	return config
}

// token reads the token of the moment; "" without one.
func (c *connector) token() (string, error) {
	if c.opts.Token == nil {
		return "", nil
	}
	token, err := c.opts.Token()
	if err != nil {
		return "", &connectError{stage: "token", err: err}
	}
	return token, nil
}
