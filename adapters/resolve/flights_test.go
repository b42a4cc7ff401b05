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
)

func TestCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Cache[int]
		boom := errors.New("boom")
		c.Put("a", 1, nil, time.Second)
		c.Put("b", 0, boom, time.Minute)
		c.Put("zero", 1, nil, 0)
		if v, err, ok := c.Get("a"); v != 1 || err != nil || !ok {
			t.Error(v, err, ok)
		}
		if _, err, ok := c.Get("b"); err != boom || !ok {
			t.Error(err, ok)
		}
		if _, _, ok := c.Get("zero"); ok {
			t.Error("kept for no time")
		}
		time.Sleep(time.Second)
		if _, _, ok := c.Get("a"); ok {
			t.Error("kept for too long")
		}
		c.Forget("b")
		if len(c.kept) != 0 {
			t.Error(len(c.kept))
		}
	})
}

func TestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c Cache[int]
		for i := range 3 * maxCached {
			c.Put(fmt.Sprint(i), i, nil, time.Hour)
		}
		if len(c.kept) != maxCached {
			t.Errorf("%d keys are kept", len(c.kept))
		}
		if _, _, ok := c.Get(fmt.Sprint(3*maxCached - 1)); !ok {
			t.Error("the newest is gone")
		}
		time.Sleep(time.Hour)
		c.Put("new", 1, nil, time.Hour)
		if len(c.kept) != 1 {
			t.Errorf("%d keys after all but one expired", len(c.kept))
		}
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
				if v, _, left, err := s.Do(t.Context(), "a"); v != "a!" || left || err != nil {
					t.Error(v, left, err)
				}
			})
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		_, f, left, err := s.Do(ctx, "a")
		cancel()
		if !left || !errors.Is(err, context.DeadlineExceeded) || !f.Reached.Load() {
			t.Error(left, err)
		}
		wg.Wait()
		if runs != 1 {
			t.Errorf("%d lookups for one key", runs)
		}
		wg.Go(func() {
			if _, _, left, err := s.Do(t.Context(), "b"); left || !errors.Is(err, context.Canceled) {
				t.Error("closed under a waiter:", left, err)
			}
		})
		synctest.Wait()
		s.Close()
		wg.Wait()
		if _, _, _, err := s.Do(t.Context(), "c"); err != ErrClosed {
			t.Error(err)
		}
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
			if v, _, left, err := s.Do(t.Context(), "good"); v != 1 || left || err != nil {
				t.Error(v, left, err)
			}
		})
		synctest.Wait()
		for i := range 10 * maxUnwanted {
			ctx, leave := context.WithCancel(t.Context())
			all.Go(func() { s.Do(ctx, fmt.Sprint(i)) })
			synctest.Wait()
			leave()
			synctest.Wait()
		}
		if running.Load() > maxUnwanted || ended.Load() == 0 {
			t.Errorf("%d lookups are under way, %d have ended", running.Load(), ended.Load())
		}
		all.Wait()
		s.Close()
	})
}
