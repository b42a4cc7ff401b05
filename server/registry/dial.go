package registry

import (
	"context"
	"fmt"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Dial implements tunnel.Dialer: it picks an agent and lets it dial. A dial
// that failed on the way, before the destination was asked, is tried once more
// through another connection. If the only agent that serves a destination was
// lost a moment ago, it waits for that one for up to tunnel.BackTime. Which agent was
// picked is logged at debug with the connection's id.
func (r *Registry) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	host, _, err := tunnel.SplitAddress(f.Address)
	if err != nil {
		return nil, err
	}
	if f.Resume.Again() {
		return r.resume(ctx, f)
	}
	c, strategy := r.find(ctx, host, nil)
	if c == nil {
		return nil, r.noAgent(f.Address)
	}
	far, err := r.dialVia(ctx, c, strategy, f)
	if err == nil || !retriable(f, err) || ctx.Err() != nil {
		return far, err
	}
	other, strategy := r.find(ctx, host, c)
	if other == nil {
		return nil, err
	}
	return r.dialVia(ctx, other, strategy, f)
}

func (r *Registry) dialVia(ctx context.Context, c *conn, strategy Strategy, f *tunnel.Flow) (tunnel.Conn, error) {
	c.load.pending.Add(1)
	defer c.load.pending.Add(-1)
	f.Hop = tunnel.Hop{Role: "agent", ID: c.agent.ID}
	start := time.Now()
	far, err := c.backend.Dial(ctx, f)
	if err == nil && f.Resume != nil {
		f.Resume.Granted.Route = c.route
	}
	c.load.dialed(time.Since(start), err, tunnel.Now())
	err = silence(c.backend, f.Address, start, err)
	if logging.Enabled(r.log, logrus.DebugLevel) {
		r.log.WithFields(logrus.Fields{"id": f.ID, "agent": c.agent.ID, "via": c.agent.Via,
			"strategy": strategy, "address": f.Address, "error": err}).Debug("agent dialed")
	}
	return far, err
}

// silence blames the agent for a dial that ran out of time, where it was the
// agent that said nothing at all and not its destination.
func silence(b Backend, address string, start time.Time, err error) error {
	last := heard(b)
	if tunnel.FailureOf(err) != tunnel.FailTimeout || last.IsZero() || last.After(start) || time.Since(last) < link.SilentAfter {
		return err
	}
	return &tunnel.DialError{
		Failure: tunnel.FailTimeout, Address: address, Err: err,
		Reason: fmt.Sprintf("the agent does not answer; nothing was heard from it for %d s", int(time.Since(last).Seconds())),
	}
}

func (r *Registry) noAgent(address string) error {
	reason := "no agent is connected"
	if n := r.Counts().Agents; n > 0 {
		reason = "no connected agent serves this destination by the strategies " + join(r.order())
	}
	return &tunnel.DialError{Failure: tunnel.FailNoAgent, Address: address, Reason: reason}
}
