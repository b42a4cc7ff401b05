package resolve

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"
)

// systemTime bounds one lookup by the system resolver, whose own bounds add up
// to half a minute and more with several servers and search domains. It has asked each
// server by then (internal/nameserver).
const systemTime = 5 * time.Second

// System is the resolver of the pod's own cluster.
type System struct {
	// Lookup does the work; nil means net.DefaultResolver.
	Lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
}

// Resolve implements Resolver. It takes at most 5 s.
func (s System) Resolve(ctx context.Context, name string) (Answer, error) {
	lookup := s.Lookup
	if lookup == nil {
		lookup = net.DefaultResolver.LookupNetIP
	}
	ctx, cancel := context.WithTimeout(ctx, systemTime)
	defer cancel()
	addrs, err := lookup(ctx, "ip", name)
	if err == nil {
		if addrs = tidy(addrs); len(addrs) > 0 {
			return Answer{Addrs: addrs, Source: FromSystem}, nil
		}
		return Answer{}, NotFound(name)
	}
	if dns, ok := errors.AsType[*net.DNSError](err); ok && dns.IsNotFound {
		return Answer{}, NotFound(name)
	}
	return Answer{}, Unavailable(name, "the name could not be looked up", err)
}
