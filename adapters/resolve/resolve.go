// Package resolve turns names into addresses as docs/sidecars.md has it ("How a
// name becomes an address"): small resolvers with three outcomes (found, not found,
// unavailable), composed into a chain.
//
// A name that is found comes as an Answer. The other two outcomes are a
// *tunnel.DialError: FailNoSuchHost when an authority said that the name does not
// exist, FailResolve (FailTimeout, FailUnavailable, ...) when none could be asked.
//
// Package adapters composes a chain for each front, and cmd/konnectivity's
// diagnose asks each step alone. Of the resolvers only Guest owns anything:
// connections to the DNS and an answers' cache.
package resolve

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	"konnectivity/tunnel"
	"konnectivity/tunnel/race"
)

// maxAddresses is how many addresses of one name are kept: several times as
// many as are ever tried, so that a name with 1,000 costs no more than one with
// 16.
const maxAddresses = 16

// Source says who knew a name. It is a label of metrics.
type Source string

// The sources.
const (
	FromLiteral Source = "literal" // the name is an address
	FromService Source = "service" // a Service of the hosted cluster
	FromGuest   Source = "guest"   // the hosted cluster's DNS
	FromSystem  Source = "system"  // the resolver of the pod's own cluster
)

// Answer is the result of a successful lookup.
type Answer struct {
	Addrs  []netip.Addr // at least 1, at most maxAddresses, in the order to try
	Source Source

	// Direct says that the addresses are to be reached without the tunnel: it
	// is deemed down, or the name is known only on this side.
	Direct bool
}

// Resolver looks names up.
type Resolver interface {
	// Resolve blocks until the name is known, known not to be, or ctx or the
	// resolver's own bound passes. name is not an address literal. Any number
	// of goroutines may call it; the Answer must not be changed.
	Resolve(ctx context.Context, name string) (Answer, error)
}

// lookupFunc is a function that is a Resolver.
type lookupFunc func(ctx context.Context, name string) (Answer, error)

// Resolve calls f.
func (f lookupFunc) Resolve(ctx context.Context, name string) (Answer, error) { return f(ctx, name) }

// NotFound is the outcome for a name that does not exist.
func NotFound(name string) error {
	return &tunnel.DialError{Failure: tunnel.FailNoSuchHost, Address: name}
}

// IsNotFound reports whether err is the outcome NotFound.
func IsNotFound(err error) bool { return tunnel.FailureOf(err) == tunnel.FailNoSuchHost }

// Unavailable is the outcome for a name that could not be looked up. why is for
// the client, err for the log.
func Unavailable(name, why string, err error) error {
	failure := tunnel.FailResolve
	if errors.Is(err, context.Canceled) {
		failure = tunnel.FailCancelled
	}
	return &tunnel.DialError{Failure: failure, Address: name, Reason: why, Err: err}
}

// First asks resolvers in order until one has found the name. If none has, the
// outcome is NotFound only if all agree on that.
func First(resolvers ...Resolver) Resolver {
	return lookupFunc(func(ctx context.Context, name string) (Answer, error) {
		var unavailable error
		for _, r := range resolvers {
			answer, err := r.Resolve(ctx, name)
			if err == nil {
				return answer, nil
			}
			if ctx.Err() != nil {
				return Answer{}, Unavailable(name, "the name could not be looked up in time", context.Cause(ctx))
			}
			if unavailable == nil && !IsNotFound(err) {
				unavailable = err
			}
		}
		if unavailable != nil {
			return Answer{}, unavailable
		}
		return Answer{}, NotFound(name)
	})
}

// PreferIPv4 puts the IPv4 addresses of r's answers first.
func PreferIPv4(r Resolver) Resolver {
	return lookupFunc(func(ctx context.Context, name string) (Answer, error) {
		answer, err := r.Resolve(ctx, name)
		if err == nil {
			answer.Addrs = slices.Clone(answer.Addrs)
			slices.SortStableFunc(answer.Addrs, func(a, b netip.Addr) int { return a.BitLen() - b.BitLen() })
		}
		return answer, err
	})
}

// tidy unmaps addresses, drops duplicates and those that are no host's (unspecified,
// multicast), alternates the families and keeps to maxAddresses.
func tidy(addrs []netip.Addr) []netip.Addr {
	kept := slices.DeleteFunc(race.Alternate(addrs), func(a netip.Addr) bool {
		return !a.IsValid() || a.IsUnspecified() || a.IsMulticast()
	})
	return kept[:min(len(kept), maxAddresses)]
}
