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

// startupGate holds up the dials of a server that has just started until the first
// agent has connected, or until a point in time. The kube-apiserver beside a server asks as soon
// as both are up, some moments before agents are back, and takes a refusal badly: it
// declares aggregated APIs unavailable, for all kube-apiservers of the cluster.
type startupGate struct {
	joined   <-chan struct{} // closed once an agent has been there
	until    time.Time
	draining <-chan struct{} // closed when there is nothing to wait for any more
}

// wait returns once a dial may be made, or ctx has ended.
func (g startupGate) wait(ctx context.Context) {
	left := time.Until(g.until)
	if left <= 0 || tunnel.Closed(g.joined) {
		return
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-g.joined:
	case <-timer.C:
	case <-g.draining:
	case <-ctx.Done():
	}
}
