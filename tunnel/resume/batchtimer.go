package resume

import (
	"sync"
	"time"
)

// batchTimer gathers connections and handles them together, with one timer for all, some
// time after the first has come. Its methods may be called from any goroutine; it is a
// leaf among locks.
type batchTimer struct {
	after  time.Duration
	handle func(*Conn)

	mu    sync.Mutex
	conns []*Conn
}

func (b *batchTimer) add(c *Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.conns = append(b.conns, c)
	if len(b.conns) == 1 {
		time.AfterFunc(b.after, b.fire)
	}
}

func (b *batchTimer) fire() {
	b.mu.Lock()
	conns := b.conns
	b.conns = nil
	b.mu.Unlock()
	for _, c := range conns {
		b.handle(c)
	}
}
