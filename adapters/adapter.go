package adapters

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"

	"github.com/sirupsen/logrus"

	"konnectivity/adapters/hosted"
	"konnectivity/adapters/resolve"
	"konnectivity/adapters/uplink"
	"konnectivity/internal/observe"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// Adapter is the composed way out of a sidecar. Its methods may be called from
// any goroutine.
type Adapter struct {
	parts
	uplink   *uplink.Server
	services *hosted.Services // nil without a kubeconfig
	cas      *proxyCAs
	log      logrus.FieldLogger

	socks5, connect, forward, straight *path
	httpProxy                          *connect.Proxy // nil: none
	httpProxyTLS                       *tls.Config
	httpNoProxy                        *exemptions
}

// New composes an Adapter. It touches no network and no file that may appear
// later, so it succeeds without server, API, DNS or certificates in place; it
// fails only on options that can never work, with an *OptionError where one of
// them is to blame, which holds no password.
func New(opt Options) (*Adapter, error) {
	opt = opt.withDefaults()
	a := &Adapter{log: opt.Log, cas: newProxyCAs(opt)}
	leave := opt.Server.Leave
	opt.Server.Leave = func() {
		if a.guest != nil {
			a.guest.CloseIdle()
		}
		if leave != nil {
			leave()
		}
	}
	var err error
	if a.uplink, err = uplink.New(opt.Server); err != nil {
		return nil, &OptionError{"Server", err}
	}
	a.metrics, err = newMetrics(opt.Registerer, a.uplink.Stats)
	if err == nil && opt.Registerer != nil {
		err = observe.Resuming(opt.Registerer, metricsPrefix, a.uplink)
	}
	if err != nil {
		a.close()
		return nil, fmt.Errorf("register metrics: %w", err)
	}
	if a.server = opt.dialServer; a.server == nil {
		a.server = a.uplink
	}
	for _, step := range []func(Options) error{a.makeDirect, a.makeResolvers, a.makePaths} {
		if err := step(opt); err != nil {
			a.close()
			return nil, err
		}
	}
	return a, nil
}

// makeDirect makes the way past the tunnel. A broken HTTPS_PROXY matters only
// where something can go that way.
func (a *Adapter) makeDirect(opt Options) error {
	a.direct = newDirect(opt.Direct)
	used := opt.Direct.CloudAPIs || len(opt.Direct.Suffixes) > 0 ||
		(opt.SOCKS5.ManagementFallback && opt.SOCKS5.GuestDNS)
	p, noProxy, err := podProxy(opt.Direct.env)
	if err != nil {
		if used {
			return fmt.Errorf("HTTPS_PROXY of the environment: %w", err)
		}
		a.log.Warnf("HTTPS_PROXY of the environment: %v; it is ignored, because no connection bypasses the tunnel", err)
		return nil
	}
	if p != nil {
		a.direct.use(p, noProxy, a.cas.client(p))
	}
	return nil
}

func (a *Adapter) makeResolvers(opt Options) error {
	namespace, name, err := opt.Hosted.guestDNS()
	if err != nil {
		return &OptionError{"Hosted.GuestDNSService", err}
	}
	if opt.Hosted.Kubeconfig == "" {
		return nil
	}
	a.services = hosted.New(hosted.Options{
		Kubeconfig: opt.Hosted.Kubeconfig,
		Proxy:      a.direct.proxyFor, GetTime: opt.lookupTime, Log: opt.Log,
	})
	a.guest = resolve.NewGuest(resolve.GuestOptions{
		Server: func(ctx context.Context) ([]netip.Addr, error) { return a.services.ClusterIPs(ctx, namespace, name) },
		Dialer: a.server, // never a path: its fallback would judge by itself
		Time:   opt.lookupTime,
	})
	a.health = resolve.NewHealth(a.guest.Probe, a.healthChanged)
	return nil
}

// healthChanged tells the operator; these two lines are the ones to act on.
func (a *Adapter) healthChanged(down bool) {
	a.metrics.health(down)
	if down {
		a.log.Warn("the hosted cluster's DNS cannot be reached through the tunnel: resolving names and connecting without the tunnel until it can")
	} else {
		a.log.Info("the hosted cluster's DNS can be reached again: using the tunnel again")
	}
}

// resolver is one front's chain (docs/sidecars.md, "How a name becomes an
// address"); nil leaves names to the agent.
func (a *Adapter) resolver(opt Options, policy ResolvePolicy) (r resolve.Resolver, fallback bool) {
	if a.services == nil || policy.Disabled {
		return nil, false
	}
	services, system := resolve.ByService(a.services), resolve.Resolver(resolve.System{Lookup: opt.Direct.lookup})
	switch {
	case policy.GuestDNS && policy.ManagementFallback:
		r, fallback = resolve.First(services, resolve.Fallback(a.guest, system, a.health, opt.lookupTime)), true
	case policy.GuestDNS:
		r = resolve.First(services, a.guest)
	default:
		r = resolve.First(services, system)
	}
	if opt.Hosted.PreferIPv4 {
		r = resolve.PreferIPv4(r)
	}
	return r, fallback
}

// makePaths composes one path for each front.
func (a *Adapter) makePaths(opt Options) error {
	httpProxy, err := connect.ParseProxy(opt.HTTPS.HTTPProxy)
	if err != nil {
		return &OptionError{"HTTPS.HTTPProxy", err}
	}
	httpsProxy, err := connect.ParseProxy(opt.HTTPS.HTTPSProxy)
	if err != nil {
		return &OptionError{"HTTPS.HTTPSProxy", err}
	}
	var exempt []string // the proxies' own names
	for _, p := range []*connect.Proxy{httpProxy, httpsProxy} {
		if p != nil {
			exempt = append(exempt, p.Host)
		}
	}
	suffixes := opt.Direct.Suffixes
	if opt.Direct.CloudAPIs {
		suffixes = append(cloudSuffixes(), suffixes...)
	}
	a.straight = &path{parts: &a.parts, self: opt.Self, bypass: new(bypass)}
	bypass, err := newBypass(suffixes, exempt)
	if err != nil {
		return &OptionError{"Direct.Suffixes", err}
	}
	httpsPolicy := ResolvePolicy{GuestDNS: true}
	a.socks5 = a.newPath(opt, bypass, opt.SOCKS5)
	a.forward = a.newPath(opt, bypass, httpsPolicy)
	a.connect = a.newPath(opt, bypass, httpsPolicy)
	a.socks5.self, a.connect.self = opt.Self, opt.Self
	a.chainTo(opt, httpProxy, httpsProxy)
	return nil
}

func (a *Adapter) newPath(opt Options, bypass *bypass, policy ResolvePolicy) *path {
	p := &path{parts: &a.parts, bypass: bypass}
	p.resolver, p.fallback = a.resolver(opt, policy)
	return p
}

// chainTo sets the customer's proxies up on the HTTP(S) front's paths.
func (a *Adapter) chainTo(opt Options, httpProxy, httpsProxy *connect.Proxy) {
	a.httpNoProxy = newExemptions(opt.HTTPS.NoProxy)
	if a.httpProxy = httpProxy; httpProxy != nil {
		a.forward.via = func(address string) tunnel.Route {
			if address == httpProxy.Address {
				return tunnel.RouteCustomer
			}
			return tunnel.RouteTunnel
		}
	}
	a.httpProxyTLS = a.cas.client(httpProxy)
	if httpsProxy != nil {
		a.connect.noProxy = a.httpNoProxy
		a.connect.customer = &proxyDialer{connect.Dialer{
			Proxy: httpsProxy, Via: tunnel.DialerFunc(a.connect.tunnel), TLS: a.cas.client(httpsProxy),
		}, "customer proxy"}
	}
}

// Retry tries a server that could not be reached again at once, for instance
// because the certificates have changed.
func (a *Adapter) Retry() { a.uplink.Retry() }

// Rerouted is for a caller who knows that addresses or routes of this machine have changed.
func (a *Adapter) Rerouted() { a.uplink.Rerouted() }

// Run keeps links, caches and health up to date until ctx ends, then closes
// the links, waits for everything it started and returns nil. The dialers work
// before Run and without it, but nothing warms up, fails back or is collected
// then. It must be called at most once.
func (a *Adapter) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	wg.Go(func() { a.uplink.Run(ctx) })
	if a.cas.used {
		wg.Go(func() { a.cas.run(ctx) })
	}
	if a.services != nil {
		wg.Go(func() { a.services.Run(ctx) })
		wg.Go(func() { a.health.Run(ctx) })
	}
	wg.Wait()
	a.close()
	return nil
}

func (a *Adapter) close() {
	a.uplink.Close()
	if a.services != nil {
		a.guest.Close()
		a.services.Close()
	}
}

// SOCKS5 is the dialer of the SOCKS5 front: names are resolved as its
// ResolvePolicy says, or left to the agent.
//
// For all dialers here: errors are *tunnel.DialError; the flow's Route, Hop and
// Resolved are filled in, also when the dial fails; without a deadline in the
// context a dial is bounded by tunnel.DefaultDialTimeout.
func (a *Adapter) SOCKS5() tunnel.Dialer { return a.socks5 }

// Connect is the dialer of the HTTP(S) front's CONNECT: direct for what the
// bypass names, by the customer's https proxy unless no-proxy exempts the
// destination, else straight through the tunnel.
func (a *Adapter) Connect() tunnel.Dialer { return a.connect }

// Forward is the dialer of the HTTP(S) front's plain requests (absolute-form
// http://): to their destinations, and to the customer's http proxy where
// Transport says that a request goes by it.
func (a *Adapter) Forward() tunnel.Dialer { return a.forward }

// Straight is the dialer of the transparent front, which asks for addresses: to
// all of them through the tunnel. It has no fallback, because what this process
// dials directly could be redirected to that front in turn.
func (a *Adapter) Straight() tunnel.Dialer { return a.straight }

// IsServer says whether to is one of the server's addresses, as looked up last.
func (a *Adapter) IsServer(to netip.AddrPort) bool { return a.uplink.Is(to) }

// Transport returns a new http.Transport for plain requests, which knows those
// that go by the customer's http proxy. Its DialContext is the caller's to set,
// so that it dials by Forward; Proxy and TLSClientConfig must be left as they
// are. A 407 from that proxy is passed on as a response.
func (a *Adapter) Transport() *http.Transport {
	return &http.Transport{Proxy: a.proxyOf, TLSClientConfig: a.httpProxyTLS}
}

// proxyOf says which proxy a plain request goes by.
func (a *Adapter) proxyOf(r *http.Request) (*url.URL, error) {
	if a.httpProxy == nil || a.forward.bypass.matches(r.URL.Hostname()) {
		return nil, nil
	}
	port := uint16(80)
	if text := r.URL.Port(); text != "" {
		n, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return nil, &tunnel.DialError{Failure: tunnel.FailBadAddress, Address: r.URL.Host}
		}
		port = uint16(n)
	}
	if a.httpNoProxy.exempts(r.URL.Hostname(), port) {
		return nil, nil
	}
	return a.httpProxy.URL(), nil
}

// ID names this process to servers. Each start makes a new one.
func (a *Adapter) ID() string { return a.uplink.ID() }

// Links lists the links to servers that are up.
func (a *Adapter) Links() []uplink.Link { return a.uplink.Links() }

// Serving is nil unless the servers say that they have no agent to serve by. It
// is for people: an agent may be back before the next request.
func (a *Adapter) Serving() error { return a.uplink.Serving() }

// Ready is nil while the server can be reached (a link is up, or the last
// handshake with a server without links worked), else one sentence why not.
func (a *Adapter) Ready() error { return a.uplink.Ready() }
