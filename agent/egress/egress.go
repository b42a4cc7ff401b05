// Package egress dials destinations in the data plane: names are resolved here,
// every address is tried, and the policy has its say about the address that is
// really connected to.
//
// A Dialer owns nothing between dials. It is the Dialer of an agent's Forwarder
// (cmd/konnectivity-agent makes it); agents also reach servers through its
// DialProxy.
package egress

import (
	"cmp"
	"context"
	"net"
	"net/netip"
	"net/url"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/nameserver"
	"konnectivity/internal/policy"
	"konnectivity/internal/policyfile"
	"konnectivity/tunnel"
)

// resolver looks names up; *net.Resolver is one.
type resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Options say how a Dialer dials; the zero value dials directly.
type Options struct {
	// Policy decides what may be dialed. nil denies only metadata addresses.
	Policy *policy.Policy
	// File decides in addition, by who the client is; nil: nothing. Its caller runs it.
	File *policyfile.Live
	// Descriptors is how many the process may have open. The last eighth of them is
	// not for destinations, so that links, probes and files find some, and clients share
	// three quarters. 0: no bound.
	Descriptors int
	// resolver looks names up; nil means the system's, as net.DefaultResolver does.
	resolver resolver
	// Proxy says through which HTTP proxy a destination is reached (the URL
	// given is https://host:port), or nil for none; the ProxyFunc of
	// golang.org/x/net/http/httpproxy fits, so NO_PROXY means what it means
	// elsewhere. nil: never. A name that goes to a proxy is resolved there, so
	// the policy can only judge the name.
	Proxy func(*url.URL) (*url.URL, error)
	// APIServers are HOST:PORT of a Kubernetes API server that this agent is beside
	// (docs/link-protocol.md §13), and all that it dials. At most race.MaxTries.
	APIServers []string
}

// boundless is how long a dial may take whose context has no deadline, so that
// nothing waits for ever because a caller forgot one.
const boundless = 30 * time.Second

// KeepAlive is that of sockets to destinations: one that vanished is noticed within two
// minutes of silence; middleboxes forget idle flows after five.
var KeepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 15 * time.Second, Count: 6}

// Dialer is a tunnel.Dialer for TCP destinations.
type Dialer struct {
	opts    Options
	spare   *spare
	clients *clients
	told    toldCache
	// control is called with each socket before it connects, in tests too.
	dialer net.Dialer
}

// New returns a Dialer with the defaults filled in.
func New(opts Options) *Dialer {
	parts := admission.ShareOut(opts.Descriptors)
	spare := &spare{most: parts.Dialed}
	if opts.resolver == nil {
		asking := net.Dialer{ControlContext: spare.control}
		opts.resolver = nameserver.New(asking.DialContext)
	}
	return &Dialer{opts: opts, spare: spare, clients: newClients(parts.Destinations), dialer: net.Dialer{
		FallbackDelay:   -1, // race.go tries the addresses itself
		KeepAliveConfig: KeepAlive,
	}}
}

// Dial connects to f.Address, host:port, over f.Network "tcp", "tcp4" or "tcp6". The
// policy is asked about the host before it is resolved and about each address as
// its socket connects. It returns once an address has answered, ctx ended, or
// every address has failed; whatever it began has ended by then. The connection counts
// for its client (f.Origin) until f ends. The error is a *tunnel.DialError.
func (d *Dialer) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	if _, has := ctx.Deadline(); !has {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, boundless)
		defer cancel()
	}
	if err := d.clients.enter(f); err != nil {
		return nil, err
	}
	dial := d.dial
	if d.besideAPI() {
		dial = d.dialAPI
	}
	conn, err := dial(ctx, f)
	if err != nil {
		return nil, explain(f.Address, err)
	}
	return conn, nil
}

func (d *Dialer) dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	family, err := familyOf(f)
	if err != nil {
		return nil, err
	}
	hold, err := d.holdTo(f, false)
	if err != nil {
		return nil, err
	}
	if hold.proxy != nil {
		hold.noteRule(nil)
		return DialProxy(ctx, hold.proxy, tunnel.JoinAddress(hold.host, hold.port), net.Dialer{ControlContext: d.spare.control}, nil)
	}
	addrs, err := d.resolve(ctx, hold, family)
	if err != nil {
		return nil, err
	}
	conn, err := d.race(ctx, hold, addrs)
	if err == nil {
		hold.noteRule(conn.RemoteAddr())
	}
	return conn, err
}

// Allow judges a connection that was dialed before as a new one: by the host that f asks for
// and by the address that it is connected to. The error is a *tunnel.DialError.
func (d *Dialer) Allow(f *tunnel.Flow, connected net.Addr) error {
	return d.judge(f, false, connected)
}

// Still is Allow for a connection that is open here. It counts nothing.
func (d *Dialer) Still(f *tunnel.Flow) error {
	if f.Far == nil { // it was handed over after its destination had ended
		return nil
	}
	return d.judge(f, true, f.Far)
}

func (d *Dialer) judge(f *tunnel.Flow, open bool, connected net.Addr) error {
	allow := d.allow
	if d.besideAPI() {
		allow = d.allowAPI
	}
	if err := allow(f, open, connected); err != nil {
		return explain(f.Address, err)
	}
	return nil
}

// Adopt is Allow for a connection that another process has dialed. It counts for its client
// as one that was dialed here.
func (d *Dialer) Adopt(f *tunnel.Flow, connected net.Addr) error {
	if err := d.Allow(f, connected); err != nil {
		return err
	}
	return d.clients.enter(f)
}

func (d *Dialer) allow(f *tunnel.Flow, open bool, connected net.Addr) error {
	if _, err := familyOf(f); err != nil { // an agent beside the API server may have dialed it
		return err
	}
	hold, err := d.holdTo(f, open)
	switch {
	case err != nil:
		return err
	case hold.proxy != nil: // which is what it is connected to
		connected = nil
	default:
		err = hold.connected(connected.String())
	}
	if err == nil && !open { // else others read f
		hold.noteRule(connected)
	}
	return err
}

// families says which addresses a network wants of the resolver.
var families = map[string]string{"tcp": "ip", "tcp4": "ip4", "tcp6": "ip6"}

func familyOf(f *tunnel.Flow) (string, error) {
	family, known := families[f.Network]
	if !known {
		return "", &tunnel.DialError{Failure: tunnel.FailBadAddress, Reason: "unknown network; only tcp is served"}
	}
	return family, nil
}

// explain types an error, and has it name the address.
func explain(address string, err error) error {
	typed := *tunnel.AsDialError(address, err)
	typed.Address = cmp.Or(typed.Address, address)
	return &typed
}
