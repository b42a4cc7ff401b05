package resume

import (
	"sync"
	"time"
)

// later gathers connections and handles them together, with one timer for all,
// some time after the first has come. Its methods may be called from any
// goroutine; it is a leaf: it holds its lock over nothing.
type later struct {
	after  time.Duration
	handle func(*Conn)

	mu    sync.Mutex
	conns []*Conn
}

func (l *later) add(c *Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns = append(l.conns, c)
	if len(l.conns) == 1 {
		time.AfterFunc(l.after, l.run)
	}
}

func (l *later) run() {
	l.mu.Lock()
	conns := l.conns
	l.conns = nil
	l.mu.Unlock()
	for _, c := range conns {
		l.handle(c)
	}
}
