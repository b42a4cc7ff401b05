package uplink

import (
	"context"
	"time"
)

const (
	// idleCheck is the longest pause between two looks at a link that is to be
	// left: at whether another is there to go on by, and anything on it still.
	idleCheck = time.Second

	// firstCheck is the first such pause. Later ones are longer, so that
	// streams that come back, because no other server has their agent, are not
	// moved all the time.
	firstCheck = 50 * time.Millisecond
)

// leave ends a link that is to be left, once nothing is on it and another is up.
func (p *pool) leave(l *pooled) {
	pause := firstCheck
	for {
		p.opt.Leave()
		if p.links().resumes(l) {
			for _, ses := range l.Sessions() {
				p.ends.Move(ses)
			}
			pause = min(2*pause, idleCheck)
		}
		if p.emptied(l, pause) && !p.only(l) {
			break
		}
		if p.tasks.ctx.Err() != nil || !l.alive() {
			return
		}
	}
	_ = l.Close()
}

// emptied waits until nothing is on l and another link is up, for no longer
// than pause, and says whether nothing is on it.
func (p *pool) emptied(l *pooled, pause time.Duration) bool {
	ctx, cancel := context.WithTimeout(p.tasks.ctx, pause)
	defer cancel()
	if l.WaitIdle(ctx) != nil {
		return false
	}
	if p.only(l) {
		select {
		case <-l.Done():
		case <-ctx.Done():
		}
	}
	return true
}

// only says whether l is the only link that is up.
func (p *pool) only(l *pooled) bool { return p.links().pick(l) == nil }
