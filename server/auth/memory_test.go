package auth

import (
	"testing"
	"testing/synctest"
	"time"
)

// What has expired is not kept until there is no more room: bad tokens come with what
// an API said of them.
func TestMemoryForgetsWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const live = 500
		m := newMemory[int, string](maxCached)
		for i := range 20 * live {
			m.put(i, "bad", badFor)
			time.Sleep(badFor / live)
		}
		if n := len(m.entries); n > 3*live {
			t.Errorf("%d entries are kept, of which %d have not expired", n, live)
		}
		if m.has(19*live-1) || !m.has(20*live-1) {
			t.Error("the wrong ones are kept")
		}
	})
}
