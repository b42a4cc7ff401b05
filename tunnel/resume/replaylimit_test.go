package resume

import (
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// An end keeps little for a peer that acknowledges nothing, or little at a time: then much,
// and says so. Once memory is scarce, it keeps little again, and says that as well.
func TestReplayLimit(t *testing.T) {
	m := newMachine(time.Minute, 0)
	acked := func(wrote, taken int) Actions {
		for left := wrote; left > 0; left -= tunnel.RecordRoom {
			m.Out.Append(tunnel.CopyChunk(make([]byte, min(left, tunnel.RecordRoom))))
		}
		giveAll(&m)
		return m.Settle(m.Acked(0, m.Out.acked+uint64(taken), false, false), t0) & Ack
	}
	limit := func(scarce bool, want int) {
		t.Helper()
		testutil.Equal(t, m.limitNow(scarce), want, "what it keeps, with scarce memory %v", scarce)
	}
	testutil.Equal(t, acked(Step-1, Step-1)|acked(Step, 0), 0, "what it says before it keeps much")
	limit(false, minKept)
	testutil.Equal(t, acked(1, 1) != 0, true, "it says that it keeps much")
	limit(false, maxKept)
	limit(true, minKept)
	for range minKept/tunnel.RecordRoom + 1 {
		m.Out.Append(tunnel.CopyChunk(make([]byte, tunnel.RecordRoom)))
	}
	testutil.Equal(t, m.Full(false), true, "writers wait behind what the carrier has yet to take")
	for m.Out.Unsent() {
		giveAll(&m)
	}
	testutil.Equal(t, m.Full(false), false, "writers wait though the carrier has taken all")
	_, _, big := m.Acknowledgement(false)
	testutil.Equal(t, big && acked(1, 1) == 0, true, "it says it once")
	testutil.Equal(t, m.Settle(m.Blocked(true), t0)&Ack != 0, true, "it says that it keeps little")
	playOn(t, &m, step{0, lost(0), StateDetached, Live, Detach})
	limit(false, minKept)
	m.Out.Release()
}

// What a writer waits with counts in the budget. Without a carrier it waits at the least
// limit, or at once while memory is about to be scarce.
func TestDetachedWriterKeepsToTheBudget(t *testing.T) {
	for held, want := range map[int]int64{0: minKept, 1 << 30: 0} {
		synctest.Test(t, func(t *testing.T) {
			budget := link.NewBudget(1 << 30)
			budget.Hold(held)
			m := New(Options{Window: DefaultWindow, Budget: budget})
			r := &tunnel.Resume{Token: newToken(), Window: DefaultWindow}
			accept := func(tunnel.Conn, error) (tunnel.Conn, error) { return lean{}, nil }
			end := testutil.Must(m.answer(&tunnel.Flow{Resume: r}, &dial{}, lean{}, nil, accept))(t)
			c := end.(*Conn)
			c.mu.Lock()
			c.step(c.m.CarrierLost(c.m.epoch, &tunnel.ResetError{Code: tunnel.CodeLost}, time.Now()))
			c.mu.Unlock()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for c.WriteChunks([]tunnel.Chunk{tunnel.NewChunk(tunnel.ChunkSize)}) == nil {
				}
			}()
			synctest.Wait()
			kept, used := m.Stats().Kept, budget.Used()-int64(held)
			testutil.Equal(t, kept, want, "bytes kept, with %d held by others", held)
			testutil.Equal(t, used, want+int64(tunnel.NewChunk(tunnel.ChunkSize).Size()), "bytes counted")
			m.Close()
			<-ended
			m.Wait()
			testutil.Equal(t, budget.Used(), int64(held), "bytes that count after its end")
		})
	}
}
