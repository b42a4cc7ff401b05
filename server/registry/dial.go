package registry

import (
	"cmp"
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
// through another connection. If the only agent that serves a destination was lost or
// has left a moment ago, it waits for the next one for up to tunnel.BackTime, and for any
// agent while they have yet to come, for up to Patience. Other servers are asked as agents are.
// Which agent was picked is logged at debug with the connection's id.
func (r *Registry) Dial(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
	host, _, err := tunnel.SplitAddress(f.Address)
	if err != nil {
		return nil, err
	}
	if f.Resume.Again() {
		return r.resume(ctx, f)
	}
	t := tries{local: f.Origin.Server != ""}
	var strategy Strategy
	for {
		c, s := r.find(ctx, host, &t)
		// An agent that does not take rules is not replaced by one of another strategy, which
		// may know something else by the same name.
		if c == nil || tunnel.IsUnjudged(err) && s != strategy {
			return nil, cmp.Or(err, r.noAgent(f.Address))
		}
		strategy = s
		var far tunnel.Conn
		if far, err = r.dialVia(ctx, c, strategy, f); err == nil || !t.again(ctx, c, f, err) {
			return far, err
		}
	}
}

func (r *Registry) dialVia(ctx context.Context, c *conn, strategy Strategy, f *tunnel.Flow) (tunnel.Conn, error) {
	c.load.pending.Add(1)
	defer c.load.pending.Add(-1)
	f.Hop = tunnel.Hop{Role: c.role(), ID: c.agent.ID}
	start := time.Now()
	far, err := c.backend.Dial(ctx, f)
	if c.far() {
		r.peers.dialed(err)
	} else if err == nil && f.Resume != nil {
		f.Resume.Granted.Route = c.route
	}
	c.load.dialed(time.Since(start), err, c.far(), tunnel.Now())
	err = silence(c, f.Address, start, err)
	if logging.Enabled(r.log, logrus.DebugLevel) {
		r.log.WithFields(logrus.Fields{"id": f.ID, "agent": c.agent.ID, "via": c.agent.Via,
			"strategy": strategy, "address": f.Address, "error": err}).Debug("agent dialed")
	}
	return far, err
}

// silence blames the agent, or the other server, for a dial that ran out of time, where it
// was that one that said nothing at all and not its destination.
func silence(c *conn, address string, start time.Time, err error) error {
	last := heard(c.backend)
	if tunnel.FailureOf(err) != tunnel.FailTimeout || last.IsZero() || last.After(start) || time.Since(last) < link.SilentAfter {
		return err
	}
	return &tunnel.DialError{
		Failure: tunnel.FailTimeout, Address: address, Err: err,
		Reason: fmt.Sprintf("the %s does not answer; nothing was heard from it for %d s", c.role(), int(time.Since(last).Seconds())),
	}
}

func (r *Registry) noAgent(address string) error {
	reason := "no agent is connected"
	if n := r.Counts().Agents; n > 0 {
		reason = "no connected agent serves this destination by the strategies " + join(r.order())
	}
	return &tunnel.DialError{Failure: tunnel.FailNoAgent, Address: address, Reason: reason}
}
