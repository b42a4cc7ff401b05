package uplink

import (
	"cmp"
	"context"
	"hash/maphash"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/race"
)

const (
	// refreshEvery is how long the server's addresses are taken for right.
	// Services of Kubernetes change theirs within seconds of a rollout, and a
	// lookup costs nothing.
	refreshEvery = 30 * time.Second

	// refreshTime bounds the look-up for a request that could also go by addresses
	// that are older than that, and refreshPause is how long the next requests do
	// without one after it has failed.
	refreshTime  = time.Second
	refreshPause = 5 * time.Second

	// maxAddresses bounds how many of a name's addresses are kept linked.
	maxAddresses = 16
)

// directory is the server's addresses, as looked up last. Its methods may be
// called from any goroutine.
type directory struct {
	host   string
	port   uint16
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)
	seed   maphash.Seed          // of cut
	routed func(netip.Addr) bool // race.Routed, but in tests

	mu    sync.Mutex
	addrs []netip.AddrPort
	until time.Time // they are taken for right
}

func newDirectory(opt Options) *directory {
	host, port, _ := tunnel.SplitAddress(opt.Address) // which New has checked
	return &directory{host: host, port: port, lookup: opt.Lookup, seed: maphash.MakeSeed(), routed: race.Routed}
}

// addresses returns the server's addresses, and whether they were looked up
// just now. Old ones are better than none, and than a look-up that takes all the
// time there is.
func (d *directory) addresses(ctx context.Context) (addrs []netip.AddrPort, fresh bool, err error) {
	d.mu.Lock()
	addrs, until := d.addrs, d.until
	d.mu.Unlock()
	if len(addrs) == 0 {
		found, err := d.resolve(ctx)
		return found, true, err
	}
	if time.Now().Before(until) {
		return addrs, false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, refreshTime)
	defer cancel()
	if found, err := d.resolve(ctx); err == nil {
		addrs = found
	}
	return addrs, true, nil
}

func (d *directory) keep(found []netip.AddrPort) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addrs, d.until = found, time.Now().Add(refreshEvery)
}

// putOff spares the next requests a look-up that has just failed.
func (d *directory) putOff() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if next := time.Now().Add(refreshPause); next.After(d.until) {
		d.until = next
	}
}

// doubt has the next request look the addresses up.
func (d *directory) doubt() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until = time.Time{}
}

// has says whether a is among the addresses that were found last.
func (d *directory) has(a netip.AddrPort) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Contains(d.addrs, netip.AddrPortFrom(a.Addr().Unmap(), a.Port()))
}

func (d *directory) find(ctx context.Context) ([]netip.AddrPort, error) {
	if ip, err := netip.ParseAddr(d.host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(ip.Unmap(), d.port)}, nil
	}
	ips, err := d.lookup(ctx, d.host)
	if err != nil {
		return nil, err
	}
	var out []netip.AddrPort
	for _, ip := range ips {
		if a := netip.AddrPortFrom(ip.Unmap(), d.port); !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, &net.DNSError{Err: "no addresses", Name: d.host, IsNotFound: true}
	}
	return d.cut(out), nil
}

// cut leaves maxAddresses of more, and of these only those with a route from here, unless none has
// one: a name may have two IP versions, and this machine one. The rest is always the same, though the
// order of a name's addresses changes, and not that of other processes, so that servers have equal
// numbers of clients.
func (d *directory) cut(all []netip.AddrPort) []netip.AddrPort {
	if len(all) <= maxAddresses {
		return all
	}
	unrouted := func(a netip.AddrPort) bool { return !d.routed(a.Addr()) }
	if reachable := slices.DeleteFunc(slices.Clone(all), unrouted); len(reachable) > 0 {
		all = reachable
	}
	slices.SortFunc(all, func(a, b netip.AddrPort) int {
		return cmp.Compare(maphash.Comparable(d.seed, a), maphash.Comparable(d.seed, b))
	})
	return all[:min(len(all), maxAddresses)]
}

// resolve looks the server's addresses up. ctx bounds it.
func (d *directory) resolve(ctx context.Context) ([]netip.AddrPort, error) {
	found, err := d.find(ctx)
	if err == nil {
		d.keep(found)
	} else {
		d.putOff()
	}
	return found, err
}
