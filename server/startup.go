package server

import (
	"context"
	"sync"
	"time"
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
// yet to come, so that dials in its registries wait for them, each for registry.Patience at most:
// until Options.Settle after the first agent that serves, or firstAgent after the first dial where
// there is none, or until the cluster or the server drains. The kube-apiserver beside a server asks
// as soon as both are up, and takes a refusal badly: it declares aggregated APIs unavailable, for
// all kube-apiservers of the cluster. It does so after 5 s without an answer, too, but then asks
// again at once, and after a row of refusals only in half a minute.
type startup struct {
	over           <-chan struct{} // closed at its end
	end            context.CancelFunc
	asked, serving func() // are told of dials, and that there are agents
}

func (s *Server) newStartup() startup {
	ctx, end := context.WithCancel(s.drains)
	if s.opts.Settle == 0 {
		end()
	}
	endAfter := func(d time.Duration) func() { return sync.OnceFunc(func() { time.AfterFunc(d, end) }) }
	return startup{over: ctx.Done(), end: end, asked: endAfter(firstAgent), serving: endAfter(s.opts.Settle)}
}
