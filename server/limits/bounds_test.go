package limits

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
)

// ended ends a flow as its Forwarder does: with a dial that fails.
func ended(f *tunnel.Flow) {
	fails := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return nil, errors.New("no") })
	_ = (&tunnel.Forwarder{Dialer: fails}).Forward(context.Background(), f, func(tunnel.Conn, error) (tunnel.Conn, error) { return nil, nil })
}

func TestBoundsOnConnections(t *testing.T) {
	var b Tenant
	now := time.Now()
	first, second, third := &tunnel.Flow{}, &tunnel.Flow{}, &tunnel.Flow{}
	if b.take(first, tenant.Bounds{Connections: 2}, now) != "" || b.take(second, tenant.Bounds{Connections: 2}, now) != "" {
		t.Fatal("there are two seats")
	}
	if why := b.take(third, tenant.Bounds{Connections: 2}, now); !strings.HasPrefix(why, "bound reached: this cluster may have 2 connections") {
		t.Errorf("got %q", why)
	}
	ended(third) // which has none to give back
	if b.take(third, tenant.Bounds{Connections: 2}, now) == "" {
		t.Error("a seat was given back that nobody had")
	}
	ended(first)
	testutil.Equal(t, b.take(third, tenant.Bounds{Connections: 2}, now), "", "with a free seat")
	testutil.Equal(t, b.take(&tunnel.Flow{}, tenant.Bounds{}, now), "", "without a bound")
}

func TestBoundsOnDials(t *testing.T) {
	var b Tenant
	now := time.Now()
	dials := func(perSecond int) (n int) {
		for b.take(&tunnel.Flow{}, tenant.Bounds{DialsPerSecond: perSecond}, now) == "" {
			n++
		}
		return n
	}
	for _, step := range []struct {
		after time.Duration
		rate  int
		want  int
	}{{0, 10, 10}, {0, 10, 0}, {100 * time.Millisecond, 10, 1}, {time.Hour, 10, 10}, {time.Hour, 3, 3}} {
		now = now.Add(step.after)
		testutil.Equal(t, dials(step.rate), step.want, "after %v at %d a second: dials", step.after, step.rate)
	}
}

// Connections that do not exist are resumed no more often than new ones are
// dialed; those that exist cost nothing, whatever else does.
func TestBoundsOnWhatIsResumedInVain(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"there":      {nil, 100},
		"gone":       {&tunnel.DialError{Failure: tunnel.FailGone}, 11}, // the burst, and the one that goes below it
		"agent lost": {&tunnel.DialError{Failure: tunnel.FailAgentLost}, 100},
	} {
		synctest.Test(t, func(t *testing.T) { // dials come back as time passes
			var b Tenant
			b.bounds.Store(&tenant.Bounds{DialsPerSecond: 10})
			dialed := 0
			var err error
			for range 100 {
				f := &tunnel.Flow{Resume: &tunnel.Resume{Epoch: 1}}
				var answered func(error)
				if answered, err = b.Admit(f); err == nil {
					dialed++
					answered(c.err)
				}
				ended(f)
			}
			if dialed != c.want || c.want < 100 && tunnel.FailureOf(err) != tunnel.FailUnavailable {
				t.Errorf("%s: %d of 100 were dialed, want %d; the last: %v", name, dialed, c.want, err)
			}
			if b.open != 0 || b.take(&tunnel.Flow{}, tenant.Bounds{DialsPerSecond: 10}, time.Now()) != "" {
				t.Errorf("%s: %d seats are taken, or no dial is left", name, b.open)
			}
		})
	}
	var b Tenant
	now := time.Now()
	for range 100 {
		b.charge(10, now)
	}
	if b.credible(10, now.Add(900*time.Millisecond)) || !b.credible(10, now.Add(1100*time.Millisecond)) {
		t.Errorf("100 in vain are not paid for in a second: %v", b.vain.level)
	}
	if !b.credible(0, now) {
		t.Error("no bound, and not credible")
	}
	b = Tenant{}
	for range 200 {
		b.charge(100, now)
	}
	if b.credible(1, now.Add(time.Millisecond)) || !b.credible(1, now.Add(1100*time.Millisecond)) {
		t.Errorf("100 in vain are not paid for in a second at a lower rate: %v", b.vain.level)
	}
}
