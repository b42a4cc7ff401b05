package server

import (
	"sync"
	"time"

	"konnectivity/internal/memory"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
)

// news is what a cluster's peers are told.
type news struct {
	drains  bool         // the server
	servers int          // how many there are; 0: not known
	serving link.Serving // whether agents serve
}

// peers are told the news as it changes.
type peers struct {
	mu      sync.Mutex
	news    news
	members memory.Map[*peer, bool]
}

// peer is told by calls that must not block. Those that are nil are news that it cannot be told, or
// that are none of its business.
type peer struct {
	drain   func()
	count   func(int)
	serving func(link.Serving)

	client sidecarLink // what a sidecar's link is; zero for others
}

// tell passes on what differs from the news before.
func (who *peer) tell(now, before news) {
	if now.drains && !before.drains && who.drain != nil {
		who.drain()
	}
	if now.servers != before.servers && who.count != nil {
		who.count(now.servers)
	}
	if now.serving != before.serving && who.serving != nil {
		who.serving(now.serving)
	}
}

// join adds a peer until leave is called, and tells it now what the others were
// told while it shook hands.
func (p *peers) join(who *peer) (leave func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	who.tell(p.news, news{})
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
	lane.tell(p.news, news{})
}

// update changes the news under the lock, so that the newest are told last.
func (p *peers) update(change func(*news)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.news
	if change(&p.news); p.news == before {
		return
	}
	for who := range p.members.All() {
		who.tell(p.news, before)
	}
}

func (p *peers) drain() { p.update(func(n *news) { n.drains = true }) }

func (p *peers) count(servers int) { p.update(func(n *news) { n.servers = servers }) }

func (p *peers) tellServing(ask func() link.Serving) { p.update(func(n *news) { n.serving = ask() }) }

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
