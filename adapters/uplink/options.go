package uplink

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

// ClientTLS makes TLS configurations for connections out of this process;
// *tlsreload.Source is one.
type ClientTLS interface {
	// Client returns a configuration that verifies serverName and offers
	// nextProtos. It is called once a target; it must follow reloads by
	// itself and keep a session cache.
	Client(serverName string, nextProtos ...string) *tls.Config
}

// DefaultConnectTimeout leaves a request half of its time for the destination when
// the server is slow to reach.
const DefaultConnectTimeout = tunnel.DefaultDialTimeout / 2

// Options says how the konnectivity server is reached. Address and TLS must be
// given.
type Options struct {
	Address    string    // host:port of the server's client port
	ServerName string    // name to ask it for, which its certificate must have; default: the host of Address
	TLS        ClientTLS // our certificate and the server's CA
	Mode       link.Mode // default link.Auto

	// Token returns a bearer token to show the server instead of a certificate; it is
	// called at every connect. nil: none.
	Token func() (string, error)

	// ConnectTimeout bounds reaching the server: name, TCP, TLS, HELLO.
	// Default 5 s. A request's own context may be shorter.
	ConnectTimeout time.Duration

	// Software is named to the server, as "konnectivity-socks5-proxy/1.2".
	Software string

	// ResumeWindow is how long a connection whose link is lost waits for another
	// link; 0 or less: it is lost too.
	ResumeWindow time.Duration

	// Lanes is how many connections a link has at most, from 1 to lanes.MaxLanes;
	// 0 means 1.
	Lanes int

	// MaxServers is to how many of the server's addresses there is a link, where there
	// are more; 0: to all. Servers that forward to one another need no more.
	MaxServers int

	// Leave is called when a server asks to be left, and again at least every
	// second until nothing is on its link any more. It closes idle connections that
	// are kept through the tunnel, for which the server waits. It must not block.
	// nil: none are kept.
	Leave func()

	// Lookup resolves the server's name; default: the system resolver.
	Lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	// DialTCP connects to the server at address by a dialer, which has keepalive and Path;
	// default: without anything in between.
	DialTCP func(ctx context.Context, by *net.Dialer, address string) (net.Conn, error)

	// Path makes the TLS handshakes, also one that DialTCP may need; default: its own.
	Path *link.Path

	Log logrus.FieldLogger // nil discards
}

func (o Options) withDefaults() (Options, error) {
	host, _, err := tunnel.SplitAddress(o.Address)
	if err != nil {
		return o, fmt.Errorf("address of the konnectivity server %q: want host:port", o.Address)
	}
	if o.Mode = cmp.Or(o.Mode, link.Auto); !o.Mode.Valid() {
		return o, fmt.Errorf("link mode %q: want auto, off or require", o.Mode)
	}
	if err := lanes.CheckMax(o.Lanes); o.Lanes != 0 && err != nil {
		return o, fmt.Errorf("%d lanes: %w", o.Lanes, err)
	}
	if o.MaxServers < 0 {
		return o, fmt.Errorf("links to at most %d servers: want 0 for all, or more", o.MaxServers)
	}
	if o.TLS == nil {
		return o, errors.New("no certificates for the konnectivity server: give a certificate, a key and a CA")
	}
	o.ServerName = cmp.Or(o.ServerName, strings.TrimSuffix(host, "."))
	if o.ConnectTimeout <= 0 {
		o.ConnectTimeout = DefaultConnectTimeout
	}
	if o.Token == nil {
		o.Token = func() (string, error) { return "", nil }
	}
	if o.Leave == nil {
		o.Leave = func() {}
	}
	if o.Lookup == nil {
		o.Lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if o.DialTCP == nil {
		o.DialTCP = func(ctx context.Context, by *net.Dialer, address string) (net.Conn, error) {
			return by.DialContext(ctx, "tcp", address)
		}
	}
	o.Path = cmp.Or(o.Path, new(link.Path))
	o.Log = cmp.Or[logrus.FieldLogger](o.Log, logging.Silent())
	return o, nil
}

// keepAlive notices within 20 s that a server is gone without a word under a
// CONNECT tunnel that is idle; links have pings for that.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 10 * time.Second, Interval: 3 * time.Second, Count: 3}
