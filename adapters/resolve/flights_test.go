package resolve

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Cache[int]
		boom := errors.New("boom")
		c.Put("a", 1, nil, time.Second)
		c.Put("b", 0, boom, time.Minute)
		c.Put("zero", 1, nil, 0)
		testutil.Equal(t, fmt.Sprint(c.Get("a")), "1 <nil> true", "a value")
		testutil.Equal(t, fmt.Sprint(c.Get("b")), "0 boom true", "an error")
		testutil.Equal(t, fmt.Sprint(c.Get("zero")), "0 <nil> false", "kept for no time")
		time.Sleep(time.Second)
		testutil.Equal(t, fmt.Sprint(c.Get("a")), "0 <nil> false", "kept for too long")
		c.Forget("b")
		testutil.Equal(t, len(c.kept), 0, "keys that are kept")
	})
}

func TestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Cache[int]
		for i := range 3 * maxCached {
			c.Put(fmt.Sprint(i), i, nil, time.Hour)
		}
		testutil.Equal(t, len(c.kept), maxCached, "keys that are kept")
		_, _, ok := c.Get(fmt.Sprint(3*maxCached - 1))
		testutil.Equal(t, ok, true, "the newest is kept")
		c.Put(fmt.Sprint(3*maxCached-1), 0, nil, time.Hour)
		testutil.Equal(t, len(c.kept), maxCached, "keys after one was put again")
		c.Put("not kept", 0, nil, 0)
		testutil.Equal(t, len(c.kept), maxCached, "keys after one that is not kept")
		time.Sleep(time.Hour)
		c.Put("new", 1, nil, time.Hour)
		testutil.Equal(t, len(c.kept), 1, "keys after all but one expired")
	})
}

func TestFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		s := NewFlights(time.Second, func(ctx context.Context, f *Flight[string]) (string, error) {
			runs++
			f.Reached.Store(true)
			select {
			case <-time.After(500 * time.Millisecond):
				return f.Key + "!", nil
			case <-ctx.Done():
				return "", ctx.Err()
			}
		})
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() {
				v, _, left, err := s.Do(t.Context(), "a")
				testutil.Equal(t, fmt.Sprint(v, left, err), "a!false <nil>", "one of ten")
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, f, left, err := s.Do(ctx, "a")
		cancel()
		testutil.Equal(t, left && f.Reached.Load(), true, "it left what was under way")
		testutil.ErrorIs(t, err, context.DeadlineExceeded, "one that leaves")
		wg.Wait()
		testutil.Equal(t, runs, 1, "lookups for one key")
		wg.Go(func() {
			_, _, left, err := s.Do(t.Context(), "b")
			testutil.Equal(t, left, false, "a waiter left")
			testutil.ErrorIs(t, err, context.Canceled, "closed under a waiter")
		})
		synctest.Wait()
		s.Close()
		wg.Wait()
		_, _, _, err = s.Do(t.Context(), "c")
		testutil.Equal(t, err, ErrClosed, "a call after Close")
	})
}

func TestFlightsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewFlights(time.Second, func(ctx context.Context, _ *Flight[int]) (int, error) { <-ctx.Done(); return 0, ctx.Err() })
		defer s.Close()
		start := time.Now()
		if _, _, left, err := s.Do(t.Context(), "a"); left || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Error(left, err, time.Since(start))
		}
	})
}

// Callers that ask and leave do not pile up lookups; those that wait are served.
func TestAbandonedFlightsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var running, ended atomic.Int64
		s := NewFlights(time.Minute, func(ctx context.Context, f *Flight[int]) (int, error) {
			running.Add(1)
			defer running.Add(-1)
			if f.Key == "good" {
				time.Sleep(10 * time.Second)
				return 1, nil
			}
			<-ctx.Done()
			ended.Add(1)
			return 0, ctx.Err()
		})
		var all sync.WaitGroup
		all.Go(func() {
			v, _, left, err := s.Do(t.Context(), "good")
			testutil.Equal(t, fmt.Sprint(v, left, err), "1 false <nil>", "one that waits")
		})
		synctest.Wait()
		for i := range 10 * maxUnwanted {
			ctx, leave := context.WithCancel(t.Context())
			all.Go(func() { s.Do(ctx, fmt.Sprint(i)) })
			synctest.Wait()
			leave()
			synctest.Wait()
		}
		testutil.AtMost(t, running.Load(), maxUnwanted, "lookups under way")
		testutil.AtLeast(t, ended.Load(), 1, "lookups that have ended")
		all.Wait()
		s.Close()
	})
}
