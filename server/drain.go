package server

import (
	"context"
	"slices"
	"sync"
	"time"

	"konnectivity/tunnel/link"
)

// drain tells everybody that the server goes, and returns when the clients'
// connections have ended, the grace period is over, or something failed.
func (s *Server) drain(failed context.Context, clientsDone <-chan struct{}) {
	s.startDrain()
	for _, f := range slices.Concat(s.clientFronts, s.agentFronts) {
		f.Drain()
	}
	s.eachCluster(func(cl *cluster) { cl.peers.drain() })
	if s.opts.Grace < 0 || failed.Err() != nil {
		return
	}
	ends := []<-chan struct{}{clientsDone}
	if s.clientGRPC != nil {
		// Clients read GOAWAY and open their next stream elsewhere. This
		// returns when the last stream has ended, by itself or by stopClients.
		// Streams outlast their connections while what a client wrote before it
		// closed is on its way. It takes no more connections, so those come first
		// that were accepted and are still in their handshake.
		newcomers, noMore := context.WithCancel(context.Background())
		graceful := make(chan struct{})
		go func() {
			defer close(graceful)
			for _, f := range s.clientFronts {
				f.Settle(newcomers)
			}
			s.tenants.awaitSettled(newcomers, clients)
			s.clientGRPC.server.GracefulStop()
		}()
		defer func() {
			noMore()
			s.stopClients()
			<-graceful
		}()
		ends = append(ends, graceful)
	}
	s.opts.Log.WithField("grace", s.opts.Grace.String()).Info("shutting down: open connections may finish")
	over := time.After(s.opts.Grace)
	for _, ended := range ends {
		select {
		case <-ended:
		case <-failed.Done():
			return
		case <-over:
			s.opts.Log.Warn("shutting down: the grace period is over, open connections are cut")
			return
		}
	}
}

// stopClients ends what clients still have open by gRPC.
func (s *Server) stopClients() {
	if s.clientGRPC != nil {
		_ = s.proxyService.Close()
		s.clientGRPC.server.Stop()
	}
}

// stopAgents ends the agents' streams in order, and then their connections.
func (s *Server) stopAgents() {
	if s.agentGRPC != nil {
		_ = s.agentService.Close()
		s.agentGRPC.server.Stop()
	}
}

// peers are told when the server drains, and when the number of servers
// changes.
type peers struct {
	mu       sync.Mutex
	draining bool
	servers  int          // as last told; 0: never
	serving  link.Serving // the same
	members  map[*peer]struct{}
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
	if p.members == nil {
		p.members = make(map[*peer]struct{})
	}
	p.members[who] = struct{}{}
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.members, who)
	}
}

// tell is for another lane of a peer that has joined, once that peer's later news
// come by it, too.
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
	for who := range p.members {
		who.drain()
	}
}

func (p *peers) count(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.servers = n
	for who := range p.members {
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
	for who := range p.members {
		if who.serving != nil {
			who.serving(now)
		}
	}
}

// serving is what clients are told of the agents.
func (cl *cluster) serving() link.Serving {
	if err := cl.agents.Ready(); err != nil {
		return link.Serving{Told: true, Why: err.Error()}
	}
	return link.Serving{Told: true}
}
