package link_test

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

const smallWindow = 16 << 10

// Senders use all their credit toward readers that read nothing. The bytes held stay within
// the budget and one frame, hoarding streams are reset with the code for memory, and a
// stream that is read goes on throughout.
func TestHoardersStayWithinTheBudget(t *testing.T) {
	budget := link.NewBudget(4 << 20)
	r := tcpRig(t, false, link.Config{Budget: budget})
	h := &hoard{rig: r, credit: map[uint64]uint64{}, resets: map[uint64]uint16{}, sent: map[uint64]uint64{}}
	const active, streams = 1, 300
	h.grow(active, "echo:1")
	for i := range streams { // all get a full first window, nine times the budget
		h.grow(uint64(3+2*i), "deaf:1")
	}
	for round := range firstWindow / smallWindow {
		for i := range streams {
			id := uint64(3 + 2*i)
			if h.resets[id] == 0 {
				r.send(data(id, largestPayload))
			}
			if i%10 == 0 {
				h.echo(active, 2000)
			}
			testutil.AtMost(t, budget.Used(), budget.Max()+largestPayload, "bytes held in round %d", round)
		}
	}
	// One that comes now gets little, and is served.
	h.grow(3+2*streams, "echo:1")
	testutil.Equal(t, h.credit[3+2*streams], smallWindow, "credit of a new stream, with the budget used up")
	h.echo(3+2*streams, 2000)
	for id, code := range h.resets {
		testutil.Equal(t, code, 8, "the code of stream %d", id)
		testutil.Equal(t, id == active, false, "the active one was reset")
	}
	testutil.AtLeast(t, len(h.resets), 1, "resets, as the budget is a ninth of the credit granted")
	testutil.Equal(t, int(r.ses.Stats().Resets), len(h.resets), "resets that are counted")
	if stats := r.ses.Stats(); int64(stats.Unread) != budget.Used() || stats.Unread == 0 { // no other link shares it
		t.Errorf("%d bytes unread, %d of the budget used", stats.Unread, budget.Used())
	}
}

// A stream whose reader takes all on the spot keeps nothing, and goes on where others have used the
// budget up.
func TestWhatIsTakenAtOnceNeedsNoMemory(t *testing.T) {
	noLeaks(t)
	here, there := tcpPair(t)
	dialer := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return tunnel.Wrap(here), nil })
	near, far := tcpPair(t)
	budget := link.NewBudget(1 << 20)
	r := newRig(t, link.Buffered(near), far, true, link.Config{Budget: budget, Handler: &tunnel.Forwarder{Dialer: dialer}})
	defer r.end()
	r.open(2, "x:1")
	r.send(frame{tData, 0, 2, []byte("before")})
	given(t, there, "before")
	testutil.Eventually(t, "one goroutine, which waits for the socket", func() bool { return pumps() == 1 })
	budget.Hold(int(budget.Max()))
	r.send(frame{tData, 0, 2, []byte("after")})
	given(t, there, "after")
	budget.Give(int(budget.Max()))
	_ = there.Close()
}

// hoard notes what the session grants and resets.
type hoard struct {
	*rig
	credit map[uint64]uint64
	resets map[uint64]uint16
	sent   map[uint64]uint64 // by the session, so far
}

// grow opens a stream and notes its credit.
func (h *hoard) grow(id uint64, address string, more ...byte) {
	h.t.Helper()
	f := openFrame(id, address)
	f.payload = append(f.payload, more...)
	h.send(f)
	for h.credit[id] == 0 {
		h.take(h.next())
	}
}

func (h *hoard) take(f frame) {
	h.t.Helper()
	switch f.typ {
	case tOpened:
		value, ok := fieldOf(f.payload, 2)
		testutil.Requires(h.t, ok, "got %v", f)
		h.credit[f.id] = binary.BigEndian.Uint64(value)
	case tCredit:
		h.credit[f.id] = binary.BigEndian.Uint64(f.payload)
	case tReset:
		h.resets[f.id] = binary.BigEndian.Uint16(f.payload)
	default:
		h.t.Fatalf("got %v", f)
	}
}

// echo sends n bytes over a stream and waits until they are back.
func (h *hoard) echo(id uint64, n int) {
	h.t.Helper()
	h.send(data(id, n))
	for n > 0 {
		f := h.next()
		if f.typ == tData && f.id == id {
			n -= len(f.payload)
			h.sent[id] += uint64(len(f.payload))
			h.send(frame{tCredit, 0, id, u64(h.sent[id] + firstWindow)})
			continue
		}
		h.take(f)
		testutil.Requires(h.t, h.resets[id] == 0, "the stream that is read was reset with code %d", h.resets[id])
	}
}

// TestClientsOfAPeerShareMemory: a client that a server numbers and that hoards
// is reset alone; another of the same link keeps what it has unread. A peer that
// is not to be believed makes one client of all.
func TestClientsOfAPeerShareMemory(t *testing.T) {
	for _, believed := range []bool{true, false} {
		noLeaks(t)
		near, far := tcpPair(t)
		cfg := link.Config{Budget: link.NewBudget(1 << 20)}
		if believed {
			cfg.Clients = new(link.Clients)
		}
		r := newRig(t, near, far, false, cfg)
		h := &hoard{rig: r, credit: map[uint64]uint64{}, resets: map[uint64]uint16{}, sent: map[uint64]uint64{}}
		open := func(id, client uint64) { h.grow(id, "deaf:1", fields(5, u64(client))...) }
		open(1, 1)
		for range 3 {
			h.send(data(1, largestPayload))
		}
		for i := range uint64(100) {
			open(3+2*i, 2)
			for range 2 {
				h.send(data(3+2*i, largestPayload))
			}
		}
		h.send(data(1, largestPayload))
		open(203, 3) // all before it was taken
		testutil.AtLeast(t, len(h.resets), 1, "streams that were reset")
		_, hurt := h.resets[1]
		testutil.Equal(t, hurt && believed, false, "the client with little unread was reset")
		testutil.Equal(t, h.credit[203] == firstWindow, believed, "a new client has a full window: %d", h.credit[203])
		r.end()
	}
}

// TestUnreadBytesCountAsTheirClients: also once both directions of a stream are over, and
// its client has no other. What it opens next does not begin with nothing held.
func TestUnreadBytesCountAsTheirClients(t *testing.T) {
	r := tcpRig(t, false, link.Config{Budget: link.NewBudget(2 << 20), Clients: new(link.Clients)})
	open := func(id, client uint64) (credit uint64) {
		defer r.want(frame{tData, fin, id, nil})
		return r.openFor(client, id, "over:1")
	}
	id := uint64(1)
	for ; open(id, 1) == firstWindow; id += 2 {
		used := r.budget.Used()
		testutil.Requires(t, used <= r.budget.Max()/8*7, "a client that leaves %d bytes unread is granted a whole window", used)
		for range 6 {
			r.send(data(id, largestPayload))
		}
		r.send(frame{tData, fin, id, nil})
	}
	testutil.Equal(t, open(id+2, 2), firstWindow, "credit of another client")
}

// TestClientHasOneShareOnAllLanes: what it hoards on one counts on another, where a client
// that hoards nothing is granted a whole window.
func TestClientHasOneShareOnAllLanes(t *testing.T) {
	cfg := link.Config{Budget: link.NewBudget(2 << 20), Clients: new(link.Clients)}
	noLeaks(t)
	lane := func() *rig {
		near, far := tcpPair(t)
		return newRig(t, near, far, false, cfg)
	}
	first, second := lane(), lane()
	t.Cleanup(second.end)
	t.Cleanup(first.end) // before it; the last to end gives back all
	id := uint64(1)
	for ; first.openFor(1, id, "deaf:1") == firstWindow; id += 2 {
		for range 7 {
			first.send(data(id, largestPayload))
		}
		first.wantNothing() // all of it was read
	}
	testutil.AtMost(t, second.openFor(1, 1, "deaf:1"), firstWindow-1, "credit of a client with its share on another lane")
	testutil.Equal(t, second.openFor(2, 3, "deaf:1"), firstWindow, "credit of another client")
}

// A bulk stream is granted more while it has the link to itself, and no more than before from the
// first message of another one on.
func TestBulkIsGrantedMoreWhileItIsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		r := newRig(t, link.Buffered(near), far, false, link.Config{})
		_ = r.conn.SetDeadline(time.Time{})
		bulk, from := r.dialed()
		keys, other := r.dialed()
		var limit atomic.Int64 // of bulk
		var wg sync.WaitGroup
		for _, c := range []io.Reader{from, other} {
			wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
		wg.Go(func() {
			for f, err := r.read(); err == nil; f, err = r.read() {
				if f.typ == tCredit && f.id == bulk {
					limit.Store(int64(binary.BigEndian.Uint64(f.payload)))
				}
			}
		})
		var sent int64
		granted := func(after time.Duration) int64 { // bulk that has been sent for so long
			for end := time.Now().Add(after); time.Now().Before(end); time.Sleep(time.Millisecond) {
				r.send(frame{tData, 0, bulk, make([]byte, 8<<10)})
				sent += 8 << 10
			}
			synctest.Wait()
			return limit.Load() - sent
		}
		const window = 128 << 10
		for _, last := range []byte{0, fin} {
			r.send(frame{tData, last, keys, []byte("k")})
			testutil.Between(t, granted(150*time.Millisecond), window/2, window, "bytes granted beside another stream")
			testutil.Between(t, granted(time.Second), 2*window, 4*window, "bytes granted to bulk alone")
		}
		_, _ = r.conn.Close(), r.ses.Close()
		wg.Wait()
	})
}
