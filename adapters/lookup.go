package adapters

import (
	"context"
	"time"

	"konnectivity/adapters/resolve"
)

// Lookup is what one step of the resolver chain says of a name.
type Lookup struct {
	Source resolve.Source
	Answer resolve.Answer
	Err    error // nil: found; see resolve.IsNotFound for "does not exist"
	Took   time.Duration
}

// Lookups asks each step that the policy names, whatever the ones before it
// say: for an operator who wants to know which of them works. None means that
// names are left to the agent. It blocks for as long as all steps together.
func (a *Adapter) Lookups(ctx context.Context, policy ResolvePolicy, name string) []Lookup {
	if a.services == nil || policy.Disabled {
		return nil
	}
	steps := []lookupStep{{resolve.FromService, resolve.ByService(a.services)}}
	if policy.GuestDNS {
		steps = append(steps, lookupStep{resolve.FromGuest, a.guest})
	}
	if !policy.GuestDNS || policy.ManagementFallback {
		steps = append(steps, lookupStep{resolve.FromSystem, resolve.System{}})
	}
	var out []Lookup
	for _, s := range steps {
		start := time.Now()
		answer, err := s.resolver.Resolve(ctx, name)
		out = append(out, Lookup{s.source, answer, err, time.Since(start)})
	}
	return out
}

// lookupStep is one resolver of the chain, asked alone.
type lookupStep struct {
	source   resolve.Source
	resolver resolve.Resolver
}
