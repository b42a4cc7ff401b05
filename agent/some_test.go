package agent

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// An agent that keeps to two of four servers is connected to another when one goes, and
// back once that has come back for a while. The server that it leaves is asked to use
// other agents, and open connections end by themselves.
func TestSomeServers(t *testing.T) {
	w := newWorld()
	all := []string{"a", "b", "c", "d"}
	servers := direct(w, all...)
	inWorld(t, w, servers, func(o *Options) { o.MaxServers = 2 }, func(b *bench) {
		time.Sleep(time.Minute)
		preferred := b.connected()
		if len(preferred) != 2 {
			t.Fatalf("connected to %v", preferred)
		}
		w.stop(preferred[0])
		time.Sleep(10 * time.Second)
		now := b.connected()
		other := slices.DeleteFunc(slices.Clone(now), func(id string) bool { return slices.Contains(preferred, id) })
		if len(now) != 2 || len(other) != 1 {
			t.Fatalf("connected to %v, before to %v", now, preferred)
		}
		left := w.first(other[0])
		left.setStreams(1)
		w.start(preferred[0])
		b.within(20*time.Second, append(slices.Clone(preferred), other...)...)
		time.Sleep(time.Minute)
		synctest.Wait()
		left.mu.Lock()
		told, cut := left.drained, left.over
		left.mu.Unlock()
		if !told || cut {
			t.Errorf("told to dial by others: %v, cut: %v", told, cut)
		}
		left.setStreams(0)
		b.within(2*drainQuiet, preferred...)
	})
}
