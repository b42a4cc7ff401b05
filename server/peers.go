package server

import (
	"sync"
	"time"

	"konnectivity/internal/memory"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

// peers are told when the server drains, and when the number of servers
// changes.
type peers struct {
	mu       sync.Mutex
	draining bool
	servers  int          // as last told; 0: never
	serving  link.Serving // the same
	members  memory.Map[*peer, bool]
}

type peer struct {
	drain func()
	count func(int) // nil: cannot be told

	serving func(link.Serving) // nil: the same, or it is none of its business

	client sidecarLink // what a sidecar's link is; zero for others
}

// join adds a peer until leave is called, and tells it now what the others were
// told while it shook hands. drain and count must not block.
func (p *peers) join(who *peer) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.draining {
		who.drain()
	}
	p.tellLocked(who)
	p.members.Set(who, true)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.members.Delete(who)
	}
}

// tell is for another lane of a peer, once the peer's later news come by it, too. The peer
// has joined, or is about to.
func (p *peers) tell(lane *peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.tellLocked(lane)
}

func (p *peers) tellLocked(who *peer) {
	if p.servers > 0 && who.count != nil {
		who.count(p.servers)
	}
	if p.serving.Told && who.serving != nil {
		who.serving(p.serving)
	}
}

func (p *peers) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.draining = true
	for who := range p.members.All() {
		who.drain()
	}
}

func (p *peers) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.servers = n
	for who := range p.members.All() {
		if who.count != nil {
			who.count(n)
		}
	}
}

// tellServing tells clients whether agents serve, if that has changed. ask is
// called under the lock, so that the newest answer is the last that is told.
func (p *peers) tellServing(ask func() link.Serving) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := ask()
	if now == p.serving {
		return
	}
	p.serving = now
	for who := range p.members.All() {
		if who.serving != nil {
			who.serving(now)
		}
	}
}

// clients lists the sidecars that are linked.
func (p *peers) clients() []sidecarLink {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []sidecarLink
	for who := range p.members.All() {
		if who.client.link != nil {
			out = append(out, who.client)
		}
	}
	return out
}

// serving is what clients are told of the agents. It is asked whenever that may have changed.
func (cl *cluster) serving() link.Serving {
	if err := cl.agents.Ready(); err != nil {
		return link.Serving{Told: true, Why: err.Error()}
	}
	cl.startup.serving()
	return link.Serving{Told: true}
}

// sidecarLink is a sidecar's link that is up.
type sidecarLink struct {
	link   *lanes.Group
	remote string
	who    tunnel.Identity
	since  time.Time
}
