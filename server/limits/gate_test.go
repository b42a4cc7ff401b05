package limits

import (
	"context"
	"errors"
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
	_ = tunnel.Forward(context.Background(), &tunnel.Forwarder{Dialer: fails}, f, func(tunnel.Conn, error) (tunnel.Conn, error) { return nil, nil })
}

// asks has a dial ask for admission. refused is why it has none.
func asks(g *Gate) (f *tunnel.Flow, refused error) {
	f = new(tunnel.Flow)
	_, refused = g.Admit(f)
	return f, refused
}

// resumes is asks for a connection that exists, as its client says, and is not there.
func resumes(g *Gate, err error) (refused error) {
	f := &tunnel.Flow{Resume: &tunnel.Resume{Epoch: 1}}
	defer ended(f)
	answered, refused := g.Admit(f)
	if refused == nil {
		answered(err)
	}
	return refused
}

var errGone = &tunnel.DialError{Failure: tunnel.FailGone}

func TestBoundsOnConnections(t *testing.T) {
	var g Gate
	g.set(tenant.Bounds{Connections: 2, DialsPerSecond: 3}) // one more than seats: refusals for want of one take none
	first, _ := asks(&g)
	_, err := asks(&g)
	testutil.NoError(t, err)
	third, err := asks(&g)
	testutil.ErrorSays(t, err, "bound reached: this cluster may have 2 connections", "a third")
	testutil.Equal(t, BoundOf(err), Connections, "the bound is")
	ended(third) // which has no seat to give back
	testutil.Fails(t, testutil.Err(asks(&g)), "a seat was given back that nobody had")
	ended(first)
	testutil.Succeeds(t, testutil.Err(asks(&g)), "with a free seat")
	g.set(tenant.Bounds{})
	testutil.Succeeds(t, testutil.Err(asks(&g)), "without a bound")
	testutil.Succeeds(t, testutil.Err(asks(new(Gate))), "in the server's own cluster")
}

func TestBoundsOnDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // dials come back as time passes
		var g Gate
		for _, step := range []struct {
			after time.Duration
			rate  int
			want  int
		}{{0, 10, 10}, {0, 10, 0}, {100 * time.Millisecond, 10, 1}, {time.Hour, 10, 10}, {time.Hour, 3, 3}} {
			time.Sleep(step.after)
			g.set(tenant.Bounds{DialsPerSecond: step.rate})
			n, err := 0, error(nil)
			for ; err == nil; n++ {
				_, err = asks(&g)
			}
			testutil.Equal(t, n-1, step.want, "after %v at %d a second: dials", step.after, step.rate)
			testutil.Holds(t, tunnel.FailureOf(err) == tunnel.FailBound && BoundOf(err) == DialsPerSecond,
				"%v, by the bound %v", err, BoundOf(err))
		}
	})
}

// Connections that do not exist are resumed no more often than new ones are
// dialed; those that exist cost nothing, whatever else does.
func TestBoundsOnWhatIsResumedInVain(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want int
	}{
		"there":      {nil, 100},
		"gone":       {errGone, 11}, // ten at once, and one more that leaves a debt
		"agent lost": {&tunnel.DialError{Failure: tunnel.FailAgentLost}, 100},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			var g Gate
			g.set(tenant.Bounds{Connections: 1, DialsPerSecond: 10})
			dialed := 0
			var err error
			for range 100 {
				if err = resumes(&g, c.err); err == nil {
					dialed++
				}
			}
			testutil.Holds(t, dialed == c.want && (c.want >= 100 || tunnel.FailureOf(err) == tunnel.FailUnavailable),
				"%d of 100 were dialed, want %d; the last: %v", dialed, c.want, err)
			_, err = asks(&g)
			testutil.Holds(t, g.open == 1 && err == nil, "%d seats are taken, or no dial is left: %v", g.open, err)
			testutil.Succeeds(t, resumes(new(Gate), errGone), "in the server's own cluster")
		})
	}
}

// However many connections were resumed in vain, they are paid for in a second, also at a rate
// that is lower since.
func TestDebtsArePaidInASecond(t *testing.T) {
	for _, c := range []struct{ before, rate int }{{10, 10}, {100, 1}} {
		synctest.Test(t, func(t *testing.T) {
			var g Gate
			g.set(tenant.Bounds{DialsPerSecond: c.before})
			for range 200 {
				g.resumed(errGone)
			}
			g.set(tenant.Bounds{DialsPerSecond: c.rate})
			time.Sleep(900 * time.Millisecond)
			testutil.Fails(t, resumes(&g, nil), "at %d a second, they are paid for sooner", c.rate)
			time.Sleep(200 * time.Millisecond)
			testutil.Succeeds(t, resumes(&g, nil), "at %d a second, they are not paid for", c.rate)
			g.resumed(errGone)
			g.resumed(errGone)
			g.set(tenant.Bounds{})
			testutil.Succeeds(t, resumes(&g, nil), "without a bound")
		})
	}
}
