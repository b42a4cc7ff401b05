package link_test

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// budgets are allocations of both ends of a link together, with whatever runs
// under them.
type budgets struct {
	bulk    float64 // 64 KiB there, as four chunks
	message float64 // 64 bytes there and 64 back
	dial    float64 // a stream opened, answered, and closed from both ends
}

// chunkBytes is the payload of a DATA frame that fills a TLS record.
const chunkBytes = tunnel.RecordSize - tunnel.Headroom

// budgetedWires are plain memory, where the figures are exact, and TLS over
// TCP, where they depend a little on how much a read finds. crypto/tls itself
// takes one each time it reads.
var budgetedWires = []struct {
	name string
	pair func(testing.TB) (net.Conn, net.Conn)
	budgets
}{
	{"memory", func(testing.TB) (net.Conn, net.Conn) { return memoryPair() }, budgets{bulk: 5, message: 2, dial: 27}},
	{"TLS", tlsPair, budgets{bulk: 8, message: 6, dial: 32}},
}

func onBudgetedWires(t *testing.T, run func(t *testing.T, m mux, b budgets)) {
	for _, wire := range budgetedWires {
		t.Run(wire.name, func(t *testing.T) {
			near, far := wire.pair(t)
			run(t, linkMux(t, near, far), wire.budgets)
		})
	}
}

func TestBulkAllocations(t *testing.T) {
	onBudgetedWires(t, func(t *testing.T, m mux, b budgets) {
		w, r := openPair(t, m)
		defer w.Close()
		defer r.Close()
		batch, got := make([]tunnel.Chunk, 4), make([]byte, 4*chunkBytes)
		testutil.MaxAllocs(t, b.bulk, func() {
			for i := range batch {
				batch[i] = tunnel.NewChunk(chunkBytes)
			}
			if err := w.(tunnel.Conn).Out().WriteChunks(batch); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(r, got); err != nil {
				t.Fatal(err)
			}
		})
	})
}

func TestMessageAllocations(t *testing.T) {
	onBudgetedWires(t, func(t *testing.T, m mux, b budgets) {
		w, r := openPair(t, m)
		defer w.Close()
		defer r.Close()
		sent, got := make([]byte, 64), make([]byte, 64)
		testutil.MaxAllocs(t, b.message, func() { passOn(t, w, r, sent, got); passOn(t, r, w, sent, got) })
	})
}

// passOn sends what from one end to the other.
func passOn(t *testing.T, from, to net.Conn, what, got []byte) {
	if _, err := from.Write(what); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(to, got); err != nil {
		t.Fatal(err)
	}
}

// A whole connection, there and back, as sidecar, server and agent carry it:
// TCP, two links, TCP, and a relay at every join. How much a read of TCP finds
// depends on the machine, so both have room: a message took 8 to 10, bulk 22
// when the machine was quiet and 28 when it was busy.
func TestConnectionAllocations(t *testing.T) {
	p := newPipeline(t)
	client, target := p.pair()
	_, _ = client.SetDeadline(time.Time{}), target.SetDeadline(time.Time{}) // two thousand exchanges take their time
	for name, c := range map[string]struct {
		size int
		max  float64
	}{"message": {64, 12}, "bulk": {64 << 10, 40}} {
		t.Run(name, func(t *testing.T) {
			sent, got := make([]byte, c.size), make([]byte, c.size)
			testutil.MaxAllocs(t, c.max, func() { passOn(t, client, target, sent, got); passOn(t, target, client, sent, got) })
		})
	}
	client.Close()
	target.Close()
	p.end()
}

func TestDialAllocations(t *testing.T) {
	onBudgetedWires(t, func(t *testing.T, m mux, b budgets) {
		testutil.MaxAllocs(t, b.dial, func() {
			w, err := m.open()
			if err != nil {
				t.Fatal(err)
			}
			r, err := m.accept()
			if err != nil {
				t.Fatal(err)
			}
			w.Close()
			r.Close()
		})
	})
}

// memoryPair is a connection in memory that allocates nothing while it carries
// bytes.
func memoryPair() (net.Conn, net.Conn) {
	a, b := newPipe(), newPipe()
	return &memoryEnd{in: a, out: b}, &memoryEnd{in: b, out: a}
}

type memoryEnd struct {
	undated
	in, out *pipe
}

func (m *memoryEnd) Read(p []byte) (int, error)  { return m.in.read(p) }
func (m *memoryEnd) Write(p []byte) (int, error) { return m.out.write(p) }
func (m *memoryEnd) Close() error                { m.in.close(); m.out.close(); return nil }

// pipe is one direction.
type pipe struct {
	mu     sync.Mutex
	cond   sync.Cond
	buf    []byte // unread bytes; its capacity stays
	closed bool
}

func newPipe() *pipe {
	p := &pipe{buf: make([]byte, 0, 1<<20)}
	p.cond.L = &p.mu
	return p
}

func (p *pipe) read(into []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf) == 0 && !p.closed {
		p.cond.Wait()
	}
	if len(p.buf) == 0 {
		return 0, io.EOF
	}
	n := copy(into, p.buf)
	p.buf = p.buf[:copy(p.buf, p.buf[n:])]
	p.cond.Broadcast()
	return n, nil
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.buf)+len(b) > cap(p.buf) && !p.closed {
		p.cond.Wait()
	}
	if p.closed {
		return 0, net.ErrClosed
	}
	p.buf = append(p.buf, b...)
	p.cond.Broadcast()
	return len(b), nil
}

func (p *pipe) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	p.cond.Broadcast()
}
