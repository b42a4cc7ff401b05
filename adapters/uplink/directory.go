package uplink

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"konnectivity/tunnel"
)

const (
	// refreshEvery is how long the server's addresses are taken for right.
	// Services of Kubernetes change theirs within seconds of a rollout, and a
	// lookup costs nothing.
	refreshEvery = 30 * time.Second

	// maxAddresses bounds how many of a name's addresses are kept linked.
	maxAddresses = 16
)

// directory is the server's addresses, as looked up last. Its methods may be
// called from any goroutine.
type directory struct {
	host   string
	port   uint16
	lookup func(ctx context.Context, host string) ([]netip.Addr, error)

	mu    sync.Mutex
	addrs []netip.AddrPort
	at    time.Time
}

func newDirectory(opt Options) *directory {
	host, port, _ := tunnel.SplitAddress(opt.Address) // which New has checked
	return &directory{host: host, port: port, lookup: opt.lookup}
}

// addresses returns the server's addresses, and whether they were looked up
// just now. Old ones are better than none.
func (d *directory) addresses(ctx context.Context, renew bool) (addrs []netip.AddrPort, fresh bool, err error) {
	d.mu.Lock()
	addrs, age := d.addrs, time.Since(d.at)
	d.mu.Unlock()
	if len(addrs) > 0 && !renew && age < refreshEvery {
		return addrs, false, nil
	}
	found, err := d.find(ctx)
	if err != nil {
		if len(addrs) > 0 {
			return addrs, true, nil
		}
		return nil, true, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.addrs, d.at = found, time.Now()
	return found, true, nil
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
		if a := netip.AddrPortFrom(ip.Unmap(), d.port); !slices.Contains(out, a) && len(out) < maxAddresses {
			out = append(out, a)
		}
	}
	if len(out) == 0 {
		return nil, &net.DNSError{Err: "no addresses", Name: d.host, IsNotFound: true}
	}
	return out, nil
}
