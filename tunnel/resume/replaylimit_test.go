package resume

import (
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

func TestRoomGrows(t *testing.T) {
	var r replayLimit
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ack := func(size int) {
		for acked := 0; acked < size; acked += 64 << 10 {
			r.grow(64<<10, now)
		}
	}
	ack(64 << 20)
	if r.bytes() != minKept {
		t.Errorf("it grew to %d though nobody waited", r.bytes())
	}
	r.want(now)
	now = now.Add(growAfter - 1)
	ack(64 << 20)
	if r.bytes() != minKept {
		t.Errorf("it grew to %d while a socket's buffers filled", r.bytes())
	}
	now = now.Add(1)
	r.grow(1, now)
	trips := 1
	for ; r.bytes() < maxKept; trips++ {
		if trips > 5 {
			t.Fatalf("%d after %d round trips", r.bytes(), trips)
		}
		ack(r.bytes())
	}
	ack(2 * maxKept)
	if r.bytes() != maxKept {
		t.Errorf("it grew beyond its bound to %d", r.bytes())
	}
	now = now.Add(limitLasts)
	r.want(now)
	if r.bytes() != minKept {
		t.Errorf("what is idle has %d", r.bytes())
	}
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
			end, err := m.answer(&tunnel.Flow{Resume: r}, &dial{}, lean{}, nil, accept)
			testutil.NoError(t, err)
			c := end.(*Conn)
			c.mu.Lock()
			c.step(Event{Kind: CarrierLost, Epoch: c.m.Epoch(), Cause: &tunnel.ResetError{Code: tunnel.CodeLost}})
			c.mu.Unlock()
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				for c.WriteChunks([]tunnel.Chunk{tunnel.NewChunk(tunnel.ChunkSize)}) == nil {
				}
			}()
			synctest.Wait()
			if kept, used := m.Stats().Kept, budget.Used()-int64(held); kept != want || used != want+int64(tunnel.NewChunk(tunnel.ChunkSize).Size()) {
				t.Errorf("with %d bytes held by others, it keeps %d and counts %d", held, kept, used)
			}
			m.Close()
			<-ended
			m.Wait()
			if used := budget.Used(); used != int64(held) {
				t.Errorf("%d bytes count after its end", used)
			}
		})
	}
}
