package link_test

import (
	"io"
	"sync"
)

// pipe is one direction of a connection in memory.
type pipe struct {
	mu     sync.Mutex
	cond   sync.Cond
	most   int    // what it holds before Write blocks
	buf    []byte // unread bytes; its capacity stays
	fin    bool
	closed error
}

func newPipe(most int) *pipe {
	p := &pipe{most: most}
	p.cond.L = &p.mu
	return p
}

func (p *pipe) Read(into []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf) == 0 {
		if p.closed != nil {
			return 0, p.closed
		}
		if p.fin {
			return 0, io.EOF
		}
		p.cond.Wait()
	}
	n := copy(into, p.buf)
	p.buf = p.buf[:copy(p.buf, p.buf[n:])]
	p.cond.Broadcast()
	return n, nil
}

func (p *pipe) Write(b []byte) (n int, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		if p.closed != nil {
			return n, p.closed
		}
		m := min(len(b)-n, p.most-len(p.buf))
		p.buf = append(p.buf, b[n:n+m]...)
		p.cond.Broadcast()
		if n += m; n == len(b) {
			return n, nil
		}
		p.cond.Wait()
	}
}

// end is the FIN.
func (p *pipe) end() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fin = true
	p.cond.Broadcast()
	return nil
}

func (p *pipe) close(cause error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed == nil {
		p.closed = cause
	}
	p.cond.Broadcast()
	return nil
}
