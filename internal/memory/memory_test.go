package memory

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

func TestIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New[int, string](100)
		for i := range 50 {
			m.Put(i, "short", time.Second)
		}
		for i := 50; i < 100; i++ {
			m.Put(i, "long", time.Hour)
		}
		time.Sleep(time.Minute)
		m.Put(100, "long", time.Hour)
		testutil.Holds(t, !m.Has(0) && m.Has(50) && m.Has(100) && len(m.entries) == 51,
			"what has expired should go first: %d entries", len(m.entries))
		for i := range 1000 {
			m.Put(i, "long", time.Hour)
		}
		testutil.Holds(t, len(m.entries) == 100 && m.Has(999), "%d entries", len(m.entries))
		for range 3 {
			m.Put(999, "again", time.Hour)
		}
		testutil.Equal(t, len(m.entries), 100, "entries after one was replaced")
	})
}

// What has expired is not kept until there is no more room: bad tokens come with what
// an API said of them.
func TestForgetsWhatHasExpired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const live = 500
		m := New[int, string](16384)
		for i := range 20 * live {
			m.Put(i, "bad", 10*time.Second)
			time.Sleep(10 * time.Second / live)
		}
		testutil.AtMost(t, len(m.entries), 3*live, "entries, of which %d have not expired", live)
		testutil.Holds(t, !m.Has(19*live-1) && m.Has(20*live-1), "the wrong ones are kept")
	})
}

const most = 1024

// full is a memory with as many keys as it keeps.
func full() (Memory[string, []int], []string) {
	c, keys := New[string, []int](most), make([]string, most)
	for i := range keys {
		keys[i] = fmt.Sprintf("service-%d.namespace.svc", i)
		c.Put(keys[i], []int{i}, time.Hour)
	}
	return c, keys
}

func BenchmarkMemory(b *testing.B) {
	c, keys := full()
	b.Run("op=hit", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.Get(keys[i%len(keys)])
		}
	})
	b.Run("op=miss", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.Get("nobody.namespace.svc")
		}
	})
	b.Run("op=replace", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.Put(keys[i%len(keys)], nil, time.Hour)
		}
	})
	b.Run("op=add-to-full", func(b *testing.B) { // one goes for each that comes
		fresh := make([]string, 4*most)
		for i := range fresh {
			fresh[i] = fmt.Sprint("fresh-", i)
		}
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			c.Put(fresh[i%len(fresh)], nil, time.Hour)
		}
	})
}

func TestMemoryAllocatesNothing(t *testing.T) {
	c, keys := full()
	testutil.Each(t, map[string]func(){
		"hit":     func() { c.Get(keys[7]) },
		"miss":    func() { c.Get("nobody") },
		"replace": func() { c.Put(keys[7], nil, time.Hour) },
	}, func(t *testing.T, f func()) { testutil.MaxAllocs(t, 0, f) })
}

// Callers at once share one call of ask. If its caller leaves, or it panics, another is made.
func TestSharedAsksOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, asked := NewShared[string, int](most), 0
		ask := func() (int, time.Duration) {
			asked++
			n := asked
			time.Sleep(time.Second)
			switch n {
			case 1: // it has left
				return n, 0
			case 2:
				panic("a defect")
			}
			return n, time.Minute
		}
		ctx, leave := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() { _, _ = s.Get(ctx, "a", ask) }) // the first
		synctest.Wait()
		leave()
		var panics atomic.Int32
		for range 10 {
			all.Go(func() {
				defer func() {
					if recover() != nil {
						panics.Add(1)
					}
				}()
				got, err := s.Get(t.Context(), "a", ask)
				testutil.Equal(t, fmt.Sprint(got, err), "3 <nil>", "one of those that stay")
			})
		}
		all.Wait()
		testutil.Equal(t, fmt.Sprint(asked, panics.Load()), "3 1", "questions, and panics")
		time.Sleep(time.Minute - time.Nanosecond)
		got, _ := s.Get(t.Context(), "a", ask)
		testutil.Equal(t, got, 3, "the answer while it is kept")
		time.Sleep(time.Nanosecond)
		got, _ = s.Get(t.Context(), "a", ask)
		testutil.Equal(t, got, 4, "the answer after it was kept long enough")
	})
}

// Callers at once share an answer that is not kept, and the next asks again.
func TestSharedAnswersThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewShared[string, int](most)
		var asked atomic.Int32
		ask := func() (int, time.Duration) {
			n := asked.Add(1)
			time.Sleep(time.Second)
			return int(n), 0
		}
		var all sync.WaitGroup
		all.Go(func() { _, _ = s.Get(t.Context(), "a", ask) })
		synctest.Wait()
		all.Go(func() {
			got, err := s.Get(t.Context(), "a", ask)
			testutil.Equal(t, fmt.Sprint(got, err), "1 <nil>", "one that waits")
		})
		ctx, leave := context.WithCancel(t.Context())
		leave()
		testutil.ErrorIs(t, testutil.Err(s.Get(ctx, "a", ask)), context.Canceled, "one who leaves")
		all.Wait()
		got, _ := s.Get(t.Context(), "a", ask)
		testutil.Equal(t, got, 2, "the answer to one who comes later")
	})
}
