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

func TestOutcomesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs, boom := 0, errors.New("boom")
		s := NewFlights(time.Second, func(_ context.Context, f *Flight[int]) (int, time.Duration, error) {
			runs++
			switch f.Key {
			case "value":
				return runs, time.Second, nil
			case "error":
				return 0, time.Minute, boom
			default:
				return runs, 0, nil
			}
		})
		ended, end := context.WithCancel(t.Context())
		end()
		ask := func(key, want string) {
			t.Helper()
			_, _, _, _ = s.Do(t.Context(), key)
			v, _, left, err := s.Do(ended, key)
			testutil.Equal(t, fmt.Sprint(v, left, err), want, "%s", key)
		}
		ask("value", "1 false <nil>")
		ask("error", "0 false boom")
		time.Sleep(time.Second)
		ask("value", "3 false <nil>")
		ask("error", "0 false boom")
		s.Forget("error")
		ask("error", "0 false boom")
		for range 2 {
			_, _, _, _ = s.Do(t.Context(), "not kept")
		}
		testutil.Equal(t, runs, 6, "lookups")
		s.Close()
		ask("error", "0 false boom")
	})
}

func TestFlights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		runs := 0
		s := NewFlights(time.Second, func(ctx context.Context, f *Flight[string]) (string, time.Duration, error) {
			runs++
			f.Reached.Store(true)
			select {
			case <-time.After(500 * time.Millisecond):
				return f.Key + "!", 0, nil
			case <-ctx.Done():
				return "", 0, ctx.Err()
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
		s := NewFlights(time.Second, func(ctx context.Context, _ *Flight[int]) (int, time.Duration, error) {
			<-ctx.Done()
			return 0, 0, ctx.Err()
		})
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
		s := NewFlights(time.Minute, func(ctx context.Context, f *Flight[int]) (int, time.Duration, error) {
			running.Add(1)
			defer running.Add(-1)
			if f.Key == "good" {
				time.Sleep(10 * time.Second)
				return 1, 0, nil
			}
			<-ctx.Done()
			ended.Add(1)
			return 0, 0, ctx.Err()
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
