package uplink

import (
	"context"
	"sync"
	"time"

	"konnectivity/internal/peers"
)

// pace says when to search for a server that has agents. Its methods may be called
// from any goroutine.
type pace struct {
	mu      sync.Mutex
	pause   peers.Backoff
	next    time.Time // no search before
	seeking bool
}

// begin says whether to search now. Who is told so has to call end.
func (k *pace) begin(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.seeking || now.Before(k.next) {
		return false
	}
	if now.Sub(k.next) >= maxPause { // the last search was for another loss
		k.pause = policy.Backoff
	}
	k.seeking = true
	return true
}

func (k *pace) end(now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.seeking, k.next = false, now.Add(k.pause.Failure())
}

// seek looks for a server that has agents where l, by which something is to go, and
// every other link are to servers that say they have none. Both links to the one
// address of several servers may be to the same server. It does not block.
func (p *pool) seek(l *pooled) {
	if !l.agentless() {
		return
	}
	old := p.links().toReplace()
	if old == nil || !p.pace.begin(time.Now()) {
		return
	}
	p.tasks.start(func() {
		p.replace(old)
		p.pace.end(time.Now())
	})
}

// replace makes another link to the address of one whose server has no agent. If
// that finds a server that has one, the old link is left.
func (p *pool) replace(old *pooled) {
	ctx, cancel := context.WithTimeout(p.tasks.ctx, p.opt.ConnectTimeout)
	defer cancel()
	found, err := p.connector.at(ctx, old.addr)
	if err != nil {
		return
	}
	if found.agentless() || !old.alive() || old.isLeaving() {
		_ = found.Close()
		return
	}
	p.offer(found)
	old.replaced.Store(true) // not before, or nobody would be ready
	p.tasks.start(func() { p.leave(old) })
}
