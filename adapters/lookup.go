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
	var out []Lookup
	ask := func(source resolve.Source, r resolve.Resolver) {
		start := time.Now()
		answer, err := r.Resolve(ctx, name)
		out = append(out, Lookup{source, answer, err, time.Since(start)})
	}
	ask(resolve.FromService, resolve.ByService(a.services))
	if policy.GuestDNS {
		ask(resolve.FromGuest, a.guest)
	}
	if !policy.GuestDNS || policy.ManagementFallback {
		ask(resolve.FromSystem, resolve.System{})
	}
	return out
}
