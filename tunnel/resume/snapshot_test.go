package resume

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// A Snapshot that Check accepts is a connection's, which an opener resumes from any offset
// that it may have, and from no other.
func FuzzSnapshot(f *testing.F) {
	f.Add(uint64(5), uint64(5), uint64(9), uint64(10), []byte("hello"), false, false, uint64(7))
	f.Add(uint64(5), uint64(6), uint64(6), uint64(11), []byte(nil), true, true, uint64(6))
	f.Add(uint64(0), uint64(0), uint64(1), uint64(0), []byte(nil), true, false, uint64(1))
	f.Add(^uint64(0), uint64(0), uint64(0), uint64(0), []byte(nil), true, true, uint64(0)) // its end overflows
	f.Fuzz(func(t *testing.T, from, acked, sent, taken uint64, kept []byte, ended, left bool, offset uint64) {
		var chunks []tunnel.Chunk
		for p := range slices.Chunk(kept, 100) {
			chunks = append(chunks, tunnel.CopyChunk(p))
		}
		s := Snapshot{Epoch: 1, Window: DefaultWindow, From: from, Acked: acked, Sent: sent, Taken: taken, Kept: chunks, Ended: ended, Left: left}
		if s.Check() != nil || len(kept) > 1<<20 {
			return
		}
		m := restore(s, t0)
		defer m.Out.Release()
		a := m.Settle(m.Offered(2, offset, t0), t0)
		may := offset >= acked && offset <= sent
		testutil.Requires(t, may == (a&Answer != 0), "from %d of %d to %d: %b", offset, acked, sent, a)
		if a&Answer == 0 {
			return
		}
		want := int(from + uint64(len(kept)) - min(offset, from+uint64(len(kept))))
		got := 0
		for m.Out.Unsent() {
			var chunks [4]tunnel.Chunk
			n, _ := m.Out.Next(chunks[:])
			for _, c := range chunks[:n] {
				got += c.Len()
			}
			tunnel.ReleaseAll(chunks[:n])
		}
		testutil.Equal(t, got, want, "bytes from %d on", offset)
	})
}

// What Describe tells of a machine, restore makes again.
func TestSnapshotHasTheWholeState(t *testing.T) {
	want := Snapshot{
		Window: DefaultWindow, Epoch: 3, From: 5, Acked: 5, Sent: 7, Taken: 9, TakenEnd: true, Ended: true,
		Kept: []tunnel.Chunk{tunnel.CopyChunk([]byte("abc"))},
	}
	m := restore(want, t0)
	defer m.Release()
	var got Snapshot
	m.Describe(&got)
	defer tunnel.ReleaseAll(got.Kept)
	testutil.Equal(t, string(got.Kept[0].Bytes()), "abc", "what is kept")
	got.Kept, want.Kept = nil, nil
	testutil.Equal(t, fmt.Sprint(got), fmt.Sprint(want), "the snapshot")
}

// The first of each line is a state, and the others differ from it by what no connection has.
func TestSnapshotsAreChecked(t *testing.T) {
	abc := func() []tunnel.Chunk { return []tunnel.Chunk{tunnel.CopyChunk([]byte("abc"))} }
	for i, line := range [][]Snapshot{
		{{From: 5, Acked: 5, Sent: 5, Kept: abc()}, {From: 5, Acked: 5, Sent: 4, Kept: abc()}},
		{{From: 5, Acked: 5, Sent: 8, Kept: abc()}, {From: 5, Acked: 5, Sent: 9, Kept: abc()}, {From: 5, Acked: 6, Sent: 8, Kept: abc()}},
		{{From: 5, Acked: 5, Sent: 9, Kept: abc(), Ended: true}, {From: 5, Acked: 5, Sent: 10, Kept: abc(), Ended: true},
			{From: 5, Acked: 9, Sent: 9, Kept: abc(), Ended: true}},
		{{From: 5, Acked: 6, Sent: 6, Ended: true}, {From: 5, Acked: 4, Sent: 6, Ended: true}},
		{{From: maxOffset, Acked: maxOffset, Sent: maxOffset}, {From: maxOffset + 1, Acked: maxOffset + 1, Sent: maxOffset + 1}},
		{{Taken: maxOffset}, {Taken: maxOffset + 1}},
		{{}, {Window: -1}},
		{{Left: true, Ended: true}, {Left: true}},
	} {
		for j, s := range line {
			testutil.Holds(t, (s.Check() == nil) == (j == 0), "line %d, %d: %v", i, j, s.Check())
			tunnel.ReleaseAll(s.Kept)
		}
	}
}

// A connection that was handed over counts in the part of its client, as all others of that one.
func TestAdoptedConnectionsAreTheirClients(t *testing.T) {
	m := New(Options{Window: time.Minute, Budget: link.NewBudget(1 << 20)})
	defer m.Wait()
	defer m.Close()
	of := func(client uint64) tunnel.Origin { return tunnel.Origin{Server: "s", Client: client} }
	mine, other := m.budgetOf(of(1)), m.budgetOf(of(2))
	testutil.NoError(t, m.Adopt(Snapshot{Origin: of(1), Window: time.Minute, Ended: true, Left: true}, nil, nil))
	got := m.all()[0].budget()
	testutil.Holds(t, got == mine && got != other, "it counts in another's part")
}

// The next agent counts what it resumes as moved, not as lost (docs/metrics.md).
func TestAdoptedConnectionsHaveMoved(t *testing.T) {
	m := New(Options{Window: time.Minute})
	defer m.Wait()
	defer m.Close()
	testutil.NoError(t, m.Adopt(Snapshot{Window: time.Minute, Ended: true, Left: true}, nil, nil))
	testutil.Equal(t, m.all()[0].ResumeStatus().Loss, tunnel.LossReplaced, "why it has no carrier")
}

// What serves a connection that was handed over is told the network that was asked for, which
// agents of before do not name.
func TestAdoptedConnectionsKeepTheirNetwork(t *testing.T) {
	m := New(Options{Window: time.Minute})
	defer m.Wait()
	defer m.Close()
	for i, c := range []struct{ network, address, want string }{
		{link.NetworkAPI, link.APIAddress, link.NetworkAPI},
		{"", link.APIAddress, link.NetworkAPI},
		{"", "a:1", "tcp"},
	} {
		near, _ := net.Pipe()
		networks := make(chan string, 1)
		s := Snapshot{Token: [16]byte{byte(i + 1)}, Network: c.network, Address: c.address, Window: time.Minute}
		testutil.NoError(t, m.Adopt(s, tunnel.Wrap(near), func(tunnel.Conn) tunnel.Handler {
			return tunnel.HandlerFunc(func(_ context.Context, flow *tunnel.Flow, _ tunnel.Answer, ended func(error)) {
				networks <- flow.Network
				ended(nil)
			})
		}))
		testutil.Equal(t, <-networks, c.want, "the network of one to %s, handed over as %q", c.address, c.network)
	}
}

// What a Manager that is closed cannot adopt is reset.
func TestAdoptedTooLate(t *testing.T) {
	m := New(Options{Window: time.Minute})
	m.Close()
	m.Wait()
	near, far := net.Pipe()
	_ = far.SetReadDeadline(time.Now().Add(20 * time.Second))
	testutil.Fails(t, m.Adopt(Snapshot{Window: time.Minute}, tunnel.Wrap(near), nil), "it was adopted")
	testutil.ErrorIs(t, testutil.Err(far.Read(make([]byte, 1))), io.EOF, "what the destination reads")
}

// A dial for another process's end passes unchanged, and one while memory is scarce asks for nothing.
func TestWhatDialsAskFor(t *testing.T) {
	budget := link.NewBudget(1 << 20)
	m := New(Options{Window: time.Minute, Budget: budget})
	defer m.Wait()
	defer m.Close()
	asks := func(given *tunnel.Resume) (asked *tunnel.Resume) {
		f := tunnel.NewFlow("tcp", "dest:1")
		f.Resume = given
		_, _ = m.Dialer(tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			asked = f.Resume
			return nil, errClosed
		})).Dial(t.Context(), f)
		return asked
	}
	others := &tunnel.Resume{Window: time.Second}
	testutil.Holds(t, asks(others) == others, "another's end is not asked for")
	testutil.Holds(t, asks(nil).Window == time.Minute, "its own end is not asked for")
	budget.Hold(1 << 20)
	testutil.Holds(t, asks(nil) == nil, "it asks for an end while memory is scarce")
}
