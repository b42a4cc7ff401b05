package main

import (
	"errors"
	"net"
	"sync"
	"syscall"
	"time"
)

// reclaimPoll is the interval at which a port is asked for that another process may yet have.
const reclaimPoll = 100 * time.Millisecond

// place is where to listen.
type place interface {
	Listen() (net.Listener, error)
	Addr() net.Addr // while another process has it
}

// port is a listener that leaves its port to another process for a while, as an agent.Port.
// Its methods may be called from any goroutine.
type port struct {
	at place

	mu      sync.Mutex
	changed sync.Cond
	l       net.Listener // nil: it does not listen
	yielded bool         // another process has the port
	closed  bool
}

// openPort opens a port. wait leaves it for Accept where it is in use.
func openPort(at place, wait bool) (*port, error) {
	p := &port{at: at}
	p.changed.L = &p.mu
	l, err := at.Listen()
	switch {
	case err == nil:
		p.l = l
	case !wait || !errors.Is(err, syscall.EADDRINUSE):
		return nil, err
	}
	return p, nil
}

// Addr implements net.Listener.
func (p *port) Addr() net.Addr {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.l == nil {
		return p.at.Addr()
	}
	return p.l.Addr()
}

// Accept implements net.Listener. It waits while another process has the port.
func (p *port) Accept() (net.Conn, error) {
	for {
		l := p.listener()
		if l == nil {
			return nil, net.ErrClosed
		}
		c, err := l.Accept()
		if !errors.Is(err, net.ErrClosed) {
			return c, err
		}
	}
}

// listener returns the listener once there is one; nil: p is closed.
func (p *port) listener() net.Listener {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.l == nil && !p.closed {
		if p.yielded {
			p.changed.Wait()
			continue
		}
		if l, err := p.at.Listen(); err == nil {
			p.l = l
			continue
		}
		p.mu.Unlock()
		time.Sleep(reclaimPoll)
		p.mu.Lock()
	}
	if p.closed {
		return nil
	}
	return p.l
}

// Yield implements agent.Port.
func (p *port) Yield() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.yielded = true
	p.stop()
}

// Reclaim implements agent.Port.
func (p *port) Reclaim() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.yielded = false
	p.changed.Broadcast()
}

// Close implements net.Listener.
func (p *port) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.changed.Broadcast()
	return p.stop()
}

func (p *port) stop() error {
	l := p.l
	p.l = nil
	if l == nil {
		return nil
	}
	return l.Close()
}
