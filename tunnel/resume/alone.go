package resume

import (
	"slices"
	"time"
)

// compactAt is how many connections that have a carrier again, or are over, may be
// among those that were left, beside as many as there are without one.
const compactAt = 64

// left is an accepted connection that lost its carrier then.
type left struct {
	token [16]byte
	since time.Time
}

// waiting is the connection, if it is without a carrier still.
func (l left) waiting(e *Manager) *Conn {
	if c := e.tokens[l.token]; c != nil && c.ResumeStatus().Lost.Equal(l.since) {
		return c
	}
	return nil
}

// crowd takes in that c has lost its carrier. Where too many have, the one that has
// waited longest ends: most openers come within moments, and one that makes
// connections to leave them pushes out its own.
func (e *Manager) crowd(c *Conn, since time.Time) {
	if e.opt.MaxDetached <= 0 {
		return
	}
	if longest := e.longest(left{c.token, since}); longest != nil {
		e.start(longest.giveUp)
	}
}

// longest adds l, and takes out the connection that is to end for it; nil: none is.
func (e *Manager) longest(l left) *Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.alone = append(e.alone, l)
	lone := int(e.lone.Load())
	if len(e.alone) > 2*lone+compactAt {
		e.alone = slices.DeleteFunc(e.alone, func(l left) bool { return l.waiting(e) == nil })
	}
	for lone > e.opt.MaxDetached && len(e.alone) > 0 {
		c := e.alone[0].waiting(e)
		e.alone = e.alone[1:]
		if c != nil {
			return c
		}
	}
	return nil
}

// giveUp ends a connection that is without a carrier.
func (c *Conn) giveUp() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.st == nil && c.end.Reason() == NotGone {
		c.end.End(Unresolved)
		c.settle()
	}
}
