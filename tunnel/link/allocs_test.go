package link_test

import (
	"errors"
	"io"
	"net"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
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
	{"memory", func(testing.TB) (net.Conn, net.Conn) { return memoryPair() }, budgets{bulk: 5, message: 2, dial: 20}},
	{"TLS", tlsPair, budgets{bulk: 8, message: 6, dial: 25}},
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
			testutil.NoError(t, w.(tunnel.Conn).Out().WriteChunks(batch))
			testutil.NoError(t, testutil.Err(io.ReadFull(r, got)))
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
	testutil.NoError(t, testutil.Err(from.Write(what)))
	testutil.NoError(t, testutil.Err(io.ReadFull(to, got)))
}

// A connection from one link to another, and by a relay to its destination, as sidecar, server and
// agent carry it.
func TestConnectionAllocations(t *testing.T) {
	near, server := memoryPair()
	toAgent, agent := memoryPair()
	next, _ := sessions(t, toAgent, agent, link.Config{}, link.Config{Handler: &tunnel.Forwarder{Dialer: &destinations{}}})
	client, _ := sessions(t, near, server, link.Config{}, link.Config{Handler: &tunnel.Forwarder{Dialer: next}})
	c := testutil.Opened(client.Dial(t.Context(), tunnel.NewFlow("tcp", "echo:1")))(t)
	for size, most := range map[int]float64{64: 8, 64 << 10: 48} {
		sent, got := make([]byte, size), make([]byte, size)
		testutil.MaxAllocs(t, most, func() { passOn(t, c, c, sent, got) })
	}
}

func TestDialAllocations(t *testing.T) {
	onBudgetedWires(t, func(t *testing.T, m mux, b budgets) {
		testutil.MaxAllocs(t, b.dial, func() {
			w := testutil.Must(m.open())(t)
			r := testutil.Must(m.accept())(t)
			w.Close()
			r.Close()
		})
	})
}

// memoryPair is a connection in memory that allocates nothing while it carries
// bytes.
func memoryPair() (net.Conn, net.Conn) {
	a, b := newPipe(1<<20), newPipe(1<<20)
	return &memoryEnd{pipe: a, out: b}, &memoryEnd{pipe: b, out: a}
}

// memoryEnd reads one pipe and writes another.
type memoryEnd struct {
	undated
	*pipe
	out *pipe
}

func (m *memoryEnd) Write(p []byte) (int, error) { return m.out.Write(p) }

func (m *memoryEnd) Close() error {
	return errors.Join(m.close(net.ErrClosed), m.out.close(net.ErrClosed))
}
