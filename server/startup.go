package server

import (
	"context"
	"time"

	"konnectivity/tunnel"
)

// DefaultSettle is the usual Options.Settle. Agents that lost their server try
// again at least every 10 s (--sync-interval-cap), so by then the first has
// come back in most cases. It is less than a dial's default timeout, so that
// clients hear that there is no agent, if there is none.
const DefaultSettle = 8 * time.Second

// startupGate holds up the dials of a server that has just started until other servers
// have told of their agents and the first agent has connected, to this one or another,
// or until a point in time. The kube-apiserver beside a server asks as soon
// as both are up, some moments before agents are back, and takes a refusal badly: it
// declares aggregated APIs unavailable, for all kube-apiservers of the cluster.
type startupGate struct {
	settled  <-chan struct{} // closed once other servers have told, as far as they can
	joined   <-chan struct{} // closed once an agent has been there
	until    time.Time
	draining <-chan struct{} // closed when there is nothing to wait for any more
}

// wait returns once a dial may be made, or ctx has ended.
func (g startupGate) wait(ctx context.Context) {
	left := time.Until(g.until)
	if left <= 0 || tunnel.Closed(g.joined) && tunnel.Closed(g.settled) {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	for _, news := range [...]<-chan struct{}{g.settled, g.joined} {
		select {
		case <-news:
		case <-timer.C:
			return
		case <-g.draining:
			return
		case <-ctx.Done():
			return
		}
	}
}
