package link_test

import (
	"net"
	"sync"
)

// gate is a net.Conn whose kernel can be made to take nothing.
type gate struct {
	net.Conn
	mu      sync.Mutex
	cond    sync.Cond
	shut    bool
	blocked int // writers that wait
	closed  bool
}

func newGate(c net.Conn) *gate {
	g := &gate{Conn: c}
	g.cond.L = &g.mu
	return g
}

func (g *gate) Write(p []byte) (int, error) {
	g.mu.Lock()
	g.blocked++
	g.cond.Broadcast()
	for g.shut && !g.closed {
		g.cond.Wait()
	}
	g.blocked--
	closed := g.closed
	g.mu.Unlock()
	if closed {
		return 0, net.ErrClosed
	}
	return g.Conn.Write(p)
}

func (g *gate) Close() error {
	g.mu.Lock()
	g.closed = true
	g.cond.Broadcast()
	g.mu.Unlock()
	return g.Conn.Close()
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	g.cond.Broadcast()
}

// waitBlocked returns once a writer waits at the gate.
func (g *gate) waitBlocked() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.blocked == 0 {
		g.cond.Wait()
	}
}
