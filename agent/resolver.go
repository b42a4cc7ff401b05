package agent

import (
	"context"
	"net"
	"net/netip"
	"net/url"
	"sync"

	"konnectivity/agent/egress"
	"konnectivity/tunnel"
)

// maxTargets bounds how many addresses are dialed, whatever DNS says.
const maxTargets = 256

// resolver turns the configured servers into addresses to dial.
type resolver struct {
	servers []string
	proxy   func(*url.URL) (*url.URL, error)
	lookup  func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

func newResolver(opts Options) *resolver {
	return &resolver{servers: opts.Servers, proxy: opts.Proxy, lookup: net.DefaultResolver.LookupNetIP}
}

// resolve returns every address, each once, and the first error. ctx bounds it. All names are
// looked up at once, so that one whose DNS does not answer leaves the others their time.
func (r *resolver) resolve(ctx context.Context) ([]address, error) {
	found, errs := make([][]address, len(r.servers)), make([]error, len(r.servers))
	var asking sync.WaitGroup
	for i, server := range r.servers {
		asking.Go(func() { found[i], errs[i] = r.resolveOne(ctx, server) })
	}
	asking.Wait()
	var all []address
	var failed error
	seen := map[string]bool{}
	for i := range r.servers {
		if failed == nil {
			failed = errs[i]
		}
		for _, a := range found[i] {
			if !seen[a.dial] && len(all) < maxTargets {
				seen[a.dial] = true
				all = append(all, a)
			}
		}
	}
	return all, failed
}

func (r *resolver) resolveOne(ctx context.Context, server string) ([]address, error) {
	host, port, err := tunnel.SplitAddress(server)
	if err != nil {
		return nil, err
	}
	switch proxy, err := egress.ProxyFor(r.proxy, host, port); {
	case err != nil:
		return nil, err
	case proxy != nil: // which resolves the name itself
		return []address{{dial: server, host: host, proxy: proxy}}, nil
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return []address{{dial: netip.AddrPortFrom(addr, port).String(), host: host}}, nil
	}
	addrs, err := r.lookup(ctx, "ip", host)
	if err != nil {
		return nil, err
	}
	all := make([]address, 0, len(addrs))
	for _, addr := range addrs {
		all = append(all, address{dial: netip.AddrPortFrom(addr.Unmap(), port).String(), host: host})
	}
	return all, nil
}
