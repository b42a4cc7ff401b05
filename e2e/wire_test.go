package e2e

import (
	"context"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// wire is a connection that a balancer carries: between whoever came, near, and
// a backend, far.
type wire struct {
	near, far *net.TCPConn
	silent    atomic.Bool // whichever side is left is not told of the other's end
}

// reset ends both sides.
func (w *wire) reset() {
	if !w.silent.Load() {
		abort(w.near)
		abort(w.far)
	}
}

// abort closes c with a reset.
func abort(c *net.TCPConn) {
	_ = c.SetLinger(0)
	_ = c.Close()
}

// carry forwards both ways until both directions have ended, or one has failed. A connection
// to a backend that was taken away during the dial is reset, since a cut meanwhile has missed it.
func (b *balancer) carry(to backend, w *wire) {
	b.mu.Lock()
	if b.ctx.Err() != nil || !slices.Contains(b.backends, to) {
		b.mu.Unlock()
		w.reset()
		return
	}
	b.wires[w] = true
	b.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { b.pump(w, w.far, w.near) })
	both.Go(func() { b.pump(w, w.near, w.far) })
	both.Wait()
	w.reset()
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.wires, w)
}

// pump forwards one direction. While the balancer stands still neither bytes nor
// ends get through.
func (b *balancer) pump(w *wire, to, from *net.TCPConn) {
	p := make([]byte, 64<<10)
	for {
		n, err := from.Read(p)
		b.moves()
		if w.silent.Load() {
			return
		}
		if _, failed := to.Write(p[:n]); failed != nil {
			w.reset()
			return
		}
		switch {
		case err == io.EOF:
			_ = to.CloseWrite()
			return
		case err != nil:
			w.reset()
			return
		}
	}
}

// moves waits while the balancer stands still.
func (b *balancer) moves() {
	b.mu.Lock()
	still := b.still
	b.mu.Unlock()
	if still == nil {
		return
	}
	select {
	case <-still:
	case <-b.ctx.Done():
	}
}

// linked waits until something is carried, so that there is something to cut.
func (b *balancer) linked(t testing.TB) {
	t.Helper()
	eventually(t, time.Minute, "a link", func() (bool, any) { n := len(b.carried()); return n > 0, n })
}

// cut resets all that is carried now.
func (b *balancer) cut() {
	for _, w := range b.carried() {
		w.reset()
	}
}

// sever resets one side of all that is carried now. The other side hears nothing
// of it, nor anything else: for it, whoever it talks to is gone without a word.
func (b *balancer) sever(near bool) {
	for _, w := range b.carried() {
		w.silent.Store(true)
		gone, other := w.far, w.near
		if near {
			gone, other = w.near, w.far
		}
		b.mu.Lock()
		b.left = append(b.left, other)
		b.mu.Unlock()
		abort(gone)
	}
}

// garble puts some bytes among those of all that is carried now, in one direction.
func (b *balancer) garble(near bool, bytes []byte) {
	for _, w := range b.carried() {
		to := w.far
		if near {
			to = w.near
		}
		b.work.Go(func() { _, _ = to.Write(bytes) }) // it waits while the reader does
	}
}

func (b *balancer) carried() []*wire {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Keys(b.wires))
}

// stands has nothing move, old or new, until ctx ends.
func (b *balancer) stands(ctx context.Context) {
	still := make(chan struct{})
	b.mu.Lock()
	b.still = still
	b.mu.Unlock()
	<-ctx.Done()
	b.mu.Lock()
	b.still = nil
	b.mu.Unlock()
	close(still)
}
