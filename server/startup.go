package server

import (
	"context"
	"time"
)

// DefaultSettle is the usual Options.Settle. Agents that lost their server try
// again at least every 10 s (--sync-interval-cap), so by then the first has
// come back in most cases. It is less than a dial's default timeout, so that
// clients hear that there is no agent, if there is none.
const DefaultSettle = 8 * time.Second

// startup is the time in which a cluster's agents, and what other servers tell of theirs, have
// yet to come: Options.Settle from its making, or until the server drains. The kube-apiserver
// beside a server asks as soon as both are up, and takes a refusal badly: it declares aggregated
// APIs unavailable, for all kube-apiservers of the cluster. So its registries have dials wait
// for an agent meanwhile.
type startup struct {
	over <-chan struct{} // closed at its end
	told <-chan struct{} // closed once other servers have told, as far as they can
}

func (s *Server) newStartup() startup {
	ctx, end := context.WithCancel(s.drains)
	time.AfterFunc(s.opts.Settle, end)
	return startup{ctx.Done(), s.settled()}
}

// wait returns once it is known what other servers have, or ctx has ended: an agent of theirs
// may suit a destination better than the first one here.
func (s startup) wait(ctx context.Context) {
	select {
	case <-s.told:
	case <-s.over:
	case <-ctx.Done():
	}
}
