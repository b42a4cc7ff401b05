package adapters

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"

	"konnectivity/adapters/resolve"
	"konnectivity/internal/policy"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
	"konnectivity/tunnel/race"
)

// direct reaches destinations without the tunnel: by the pod's own proxy, as
// HTTPS_PROXY and NO_PROXY have it, else by TCP.
type direct struct {
	system  resolve.Resolver
	tcp     func(ctx context.Context, network, address string) (net.Conn, error)
	refuse  func(netip.AddrPort) bool
	proxy   *proxyDialer // nil: none
	noProxy *exemptions
}

func newDirect(opt DirectOptions) *direct {
	d := &direct{system: resolve.System{Lookup: opt.lookup}, tcp: opt.dialTCP, refuse: opt.Refuse}
	if d.tcp == nil {
		d.tcp = new(net.Dialer).DialContext
	}
	return d
}

// podProxy reads HTTPS_PROXY and NO_PROXY of the pod; p is nil without a proxy.
func podProxy(getenv func(string) string) (p *connect.Proxy, noProxy *exemptions, err error) {
	env := func(lower, upper string) string { return cmp.Or(getenv(lower), getenv(upper)) } // lower case wins, as in httpproxy and curl
	p, err = connect.ParseProxy(env("https_proxy", "HTTPS_PROXY"))
	return p, newExemptions(env("no_proxy", "NO_PROXY")), err
}

// use makes d go by the pod's proxy.
func (d *direct) use(p *connect.Proxy, noProxy *exemptions, certs *tls.Config) {
	d.noProxy = noProxy
	d.proxy = &proxyDialer{connect.Dialer{Proxy: p, Via: tunnel.DialerFunc(d.dialTCP), TLS: certs}, "this pod's proxy"}
}

// proxyFor is the pod's proxy for u, as http.Transport wants it.
func (d *direct) proxyFor(u *url.URL) (*url.URL, error) {
	port := uint16(443)
	if n, err := strconv.ParseUint(u.Port(), 10, 16); err == nil {
		port = uint16(n)
	}
	if d.proxy == nil || d.noProxy.exempts(u.Hostname(), port) {
		return nil, nil
	}
	return d.proxy.Proxy.URL(), nil
}

// Dial implements tunnel.Dialer.
func (d *direct) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	return d.dial(ctx, f, nil)
}

// dial is Dial for a host whose addresses are known already, if addrs is not
// empty. A proxy is told the name and looks it up itself.
func (d *direct) dial(ctx context.Context, f *tunnel.Flow, addrs []netip.Addr) (tunnel.Conn, error) {
	host, port, err := tunnel.SplitAddress(f.Address)
	if err != nil {
		return nil, err
	}
	if d.proxy != nil && !d.noProxy.exempts(host, port) {
		if err := allowByProxy(host, port, addrs); err != nil {
			return nil, err
		}
		return d.proxy.Dial(ctx, f)
	}
	if len(addrs) > 0 {
		return d.dialAddrs(ctx, f, port, addrs)
	}
	return d.dialTCP(ctx, f)
}

func (d *direct) dialTCP(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	host, port, err := tunnel.SplitAddress(f.Address)
	if err != nil {
		return nil, err
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return d.dialAddrs(ctx, f, port, []netip.Addr{ip})
	}
	answer, err := d.system.Resolve(ctx, host)
	if err != nil {
		return nil, err
	}
	return d.dialAddrs(ctx, f, port, answer.Addrs)
}

// nowhere denies the metadata services of clouds alone. A client may be a customer,
// and a customer can make a connection go direct: by a name that the hosted cluster's
// DNS is told to deny, or by taking the tunnel down. These addresses would give away
// the credentials of the machine that this pod is on.
var nowhere *policy.Policy

// allowByProxy judges, as far as it is known here, where the pod's proxy would go: that
// is on such a machine as well, and may be on this one.
func allowByProxy(host string, port uint16, addrs []netip.Addr) error {
	for _, ip := range addrs {
		if err := nowhere.AllowAddr(netip.AddrPortFrom(ip, port)); err != nil {
			return err
		}
	}
	return nowhere.AllowUnresolved(host, port)
}

func (d *direct) dialAddrs(ctx context.Context, f *tunnel.Flow, port uint16, addrs []netip.Addr) (tunnel.Conn, error) {
	dial := func(ctx context.Context, ip netip.Addr) (tunnel.Conn, error) {
		to := netip.AddrPortFrom(ip.Unmap(), port)
		if d.refuse(to) {
			return nil, &tunnel.DialError{Failure: tunnel.FailDenied, Address: f.Address, Reason: "the destination is this proxy itself"}
		}
		if err := nowhere.AllowAddr(to); err != nil {
			return nil, err
		}
		c, err := d.tcp(ctx, f.Network, to.String())
		if err != nil {
			return nil, &tunnel.DialError{Failure: tunnel.FailureOf(err), Address: f.Address, Err: err}
		}
		return tunnel.Wrap(c), nil
	}
	c, ip, err := race.Dial(ctx, addrs, dial)
	if err == nil {
		f.Resolved = netip.AddrPortFrom(ip, port).String()
		return c, nil
	}
	return nil, fmt.Errorf("direct: %w", err)
}
