package server

import (
	"context"
	"sync"
	"time"

	"konnectivity/server/registry"
	"konnectivity/tunnel"
)

const (
	// DefaultSettle is the usual Options.Settle. Agents that lost their server try
	// again at least every 10 s (--sync-interval-cap), so by then most have come back
	// once the first has.
	DefaultSettle = 8 * time.Second

	// firstAgent is how long after the first dial of all the first agent may come. Where a
	// Service leads agents to the pods that are ready, it does so only once the kube-apiserver
	// beside the server is ready and nodes and load balancers have heard of it.
	firstAgent = time.Minute
)

// startup is the time in which a cluster's agents, and what other servers tell of theirs, have
// yet to come, so that dials in its registries wait for an agent, each for registry.Patience at
// most: until Options.Settle after the first that serves, or firstAgent after the first dial where
// there is none, or until the cluster or the server drains. The kube-apiserver beside a server asks
// as soon as both are up, and takes a refusal badly: it declares aggregated APIs unavailable, for
// all kube-apiservers of the cluster. It does so after 5 s without an answer, too, but then asks
// again at once, and after a row of refusals only in half a minute.
type startup struct {
	over          <-chan struct{} // closed at its end
	end           context.CancelFunc
	settle        time.Duration
	told          <-chan struct{} // closed once other servers have told, as far as they can
	asked, served sync.Once       // by a dial; of agents
}

func (s *Server) newStartup() startup {
	ctx, end := context.WithCancel(s.drains)
	if s.opts.Settle == 0 {
		end()
	}
	return startup{over: ctx.Done(), end: end, settle: s.opts.Settle, told: s.settled()}
}

// serving is told that there are agents.
func (u *startup) serving() { u.endAfter(u.settle, &u.served) }

// wait returns once it is known what other servers have, after registry.Patience, or once ctx has
// ended: an agent of theirs may suit a destination better than the first one here.
func (u *startup) wait(ctx context.Context) {
	u.endAfter(firstAgent, &u.asked)
	if tunnel.Closed(u.told) {
		return
	}
	select {
	case <-u.told:
	case <-u.over:
	case <-time.After(registry.Patience):
	case <-ctx.Done():
	}
}

// endAfter ends it after d, unless once was called before.
func (u *startup) endAfter(d time.Duration, once *sync.Once) {
	once.Do(func() { time.AfterFunc(d, u.end) })
}
