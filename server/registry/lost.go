package registry

import (
	"context"
	"errors"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// stayTime is how long a second connection of an agent must have lasted to
// replace the first. Agents also make them to look for other servers behind one
// address, and close them at once if they meet one that they know.
const stayTime = time.Second

// over says that a connection has ended, which its dials learn before the registry does.
func (c *conn) over() bool { return c.backend.Ends().Happened() || c.backend.Err() != nil }

// leave forgets a connection, which may have been forgotten before, and reports whether its
// agent's id went with it. Its agent may come back, or another in its place, as in a rollout on a
// single node: dials wait for that, for a time.
func (r *Registry) leave(c *conn) (last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.index.has(c) {
		return c.last
	}
	r.index.leave(c)
	if c.wasCut() {
		r.cutOffLocked(c)
	}
	c.last = r.index.first(c.agent) == nil
	if c.left() && !r.index.knows(c.agent) {
		r.lost.join(c)
		time.AfterFunc(tunnel.BackTime, func() { r.giveUp(c) })
	}
	r.wakeWaiters() // dials that failed with it can tell now whether to wait for its agent
	return c.last
}

// giveUp ends the wait for an agent.
func (r *Registry) giveUp(c *conn) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.lost.has(c) {
		r.lost.leave(c)
		r.wakeWaiters()
	}
}

// drained says that its agent has asked for no new dials, which the registry may learn later.
func (c *conn) drained() bool { return c.backend.Drains().Happened() }

// wasCut says that a connection has ended although neither the agent nor this
// server meant it to.
func (c *conn) wasCut() bool {
	var bye *link.GoAwayError
	return c.left() && !errors.As(c.backend.Err(), &bye)
}

// left says that a connection has ended, and not since this server closed it, or its last lane
// where there are several.
func (c *conn) left() bool {
	return c.backend.Ends().Happened() && !errors.Is(c.backend.Err(), link.ErrClosed)
}

// doubtLater doubts the connections that an agent had before c, and warns of other, which has the
// same id, unless one of the two ends soon, or stop is called.
func (r *Registry) doubtLater(c, other *conn, before []*conn) (stop func()) {
	if other == nil {
		return func() {}
	}
	timer := time.AfterFunc(stayTime, func() {
		if r.stays(c) {
			doubt(before)
			if !other.over() {
				r.warnOfTwo(c.agent, other.agent)
			}
		}
		other, before = nil, nil // stop, and so the timer with it, is kept for as long as c
	})
	return func() { timer.Stop() }
}

// stays reports whether c is there, and neither drains nor has ended.
func (r *Registry) stays(c *conn) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.index.has(c) && !c.draining && !c.backend.Ends().Happened()
}

// doubt makes an agent show that it still uses these connections: it has made a
// newer one, and may have lost these without this server's knowing. What they
// carry would stand still until silence tells.
func doubt(before []*conn) {
	for _, c := range before {
		if b, ok := c.backend.(interface{ Probe() }); ok {
			b.Probe()
		}
	}
}

// Patience is how long a dial waits for agents at most. It is less than a dial's default timeout,
// so that clients hear that there is no agent, and not of a timeout.
const Patience = 8 * time.Second

// find returns a connection for a destination, as pick does, which it waits for where pick
// has news. All waits of one dial take Patience at most.
func (r *Registry) find(ctx context.Context, host string, t *tries) (*conn, Strategy) {
	settled := r.settled
	for {
		c, s, news := r.pick(host, t)
		if news.own == nil || t.late {
			return c, s
		}
		if t.patience == nil {
			t.patience = time.After(Patience)
		}
		select {
		case <-news.own:
		case <-news.far:
		case <-settled:
			settled = nil
		case <-t.patience:
			t.late = true
		case <-ctx.Done():
			return nil, ""
		}
	}
}

// retriable says whether a dial that has failed on the way may be tried by
// another connection. If it is to outlive its carriers, and lost the first
// before it was answered, repeating it is up to its opener, who numbers the
// attempts. Of agents of several versions, another one may know rules that the first
// does not.
func retriable(f *tunnel.Flow, err error) bool {
	if tunnel.IsUnjudged(err) {
		return true
	}
	return tunnel.FailureOf(err).Retryable() && (f.Resume == nil || !tunnel.LostInFlight(err))
}
