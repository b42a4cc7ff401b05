package tunnel_test

import (
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A deadline passes at its time, wakes who waits, and holds until it is moved.
func TestDeadline(t *testing.T) {
	set := func(in time.Duration) func(*tunnel.Deadline, *sync.Cond) {
		return func(d *tunnel.Deadline, c *sync.Cond) { d.Set(time.Now().Add(in), c) }
	}
	lift := func(d *tunnel.Deadline, c *sync.Cond) { d.Set(time.Time{}, c) }
	stop := func(d *tunnel.Deadline, _ *sync.Cond) { d.Stop() }
	type step struct {
		do     func(*tunnel.Deadline, *sync.Cond)
		after  time.Duration
		passed bool
	}
	testutil.EachInBubble(t, map[string][]step{
		"never":                   {{stop, time.Hour, false}},
		"in time":                 {{set(2 * time.Second), time.Second, false}, {func(*tunnel.Deadline, *sync.Cond) {}, time.Second, true}},
		"in the past":             {{set(-1), 0, true}},
		"moved before it":         {{set(2 * time.Second), time.Second, false}, {set(2 * time.Second), time.Second, false}, {set(2 * time.Second), 2 * time.Second, true}},
		"moved after it":          {{set(time.Second), time.Second, true}, {set(time.Second), 0, false}},
		"lifted before it":        {{set(time.Second), 0, false}, {lift, time.Minute, false}},
		"lifted after it":         {{set(time.Second), time.Second, true}, {lift, time.Minute, false}},
		"stopped before it":       {{set(time.Second), 0, false}, {stop, time.Minute, false}},
		"stopped, but it is over": {{set(time.Second), time.Second, true}, {stop, time.Minute, true}},
	}, func(t *testing.T, steps []step) {
		var mu sync.Mutex
		var d tunnel.Deadline
		cond := sync.NewCond(&mu)
		woken, leave := false, false
		var waiter sync.WaitGroup
		waiter.Go(func() {
			mu.Lock()
			defer mu.Unlock()
			for !leave {
				cond.Wait()
				woken = woken || d.Passed()
			}
		})
		synctest.Wait()
		for i, s := range steps {
			mu.Lock()
			woken = false
			s.do(&d, cond)
			before := d.Passed()
			mu.Unlock()
			time.Sleep(s.after)
			synctest.Wait()
			mu.Lock()
			testutil.Holds(t, d.Passed() == s.passed && (before || !s.passed || woken),
				"step %d: passed is %v, and who waits was told %v", i, d.Passed(), woken)
			mu.Unlock()
		}
		mu.Lock()
		leave = true
		cond.Broadcast()
		mu.Unlock()
		waiter.Wait()
	})
}
