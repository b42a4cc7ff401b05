package registry

import (
	"context"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// A dial waits for the only agent that serves its destination, if that was lost or has left a
// moment ago, and for nobody else.
func TestDialsWaitForAnAgentThatWasLost(t *testing.T) {
	const outage = 400 * time.Millisecond
	cut := func(f *fake) { f.end() }
	for name, c := range map[string]struct {
		address string
		end     func(*fake)
		after   time.Duration // that the dial begins after the end
		back    string        // who joins when the outage is over
		want    string
		took    time.Duration
	}{
		"back in time":           {"10.0.0.1:1", cut, 0, "cidr=10.0.0.0/8", "back", outage},
		"another one":            {"10.0.0.1:1", cut, 0, "ipv4=10.0.0.1", "no_agent", tunnel.BackTime},
		"never back":             {"10.0.0.1:1", cut, time.Second, "", "no_agent", tunnel.BackTime - time.Second},
		"lost long ago":          {"10.0.0.1:1", cut, tunnel.BackTime, "", "no_agent", 0},
		"drained, and replaced":  {"10.0.0.1:1", func(f *fake) { f.drain(); cut(f) }, 0, "cidr=10.0.0.0/8", "back", outage},
		"it served others alone": {"192.0.2.1:1", cut, 0, "cidr=10.0.0.0/8", "no_agent", 0},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			s := newSetup(t, "destCIDR")
			f, leave := s.join("first", "a", "cidr=10.0.0.0/8")
			defer leave()
			c.end(f)
			synctest.Wait()
			time.Sleep(c.after)
			if c.back != "" {
				time.AfterFunc(outage, func() {
					id := "a"
					if c.want != "back" {
						id = "b"
					}
					_, leave := s.join("back", id, c.back)
					t.Cleanup(leave)
				})
			}
			s.goes(c.address, c.want, c.took)
			time.Sleep(2 * tunnel.BackTime)
			s.mu.RLock()
			defer s.mu.RUnlock()
			testutil.Equal(t, s.lost.all.count(), 0, "are waited for, for ever")
		})
	}
}

// A dial that failed at an agent which is still there is not kept for another one
// that was lost; one that failed with its agent's link waits for that agent.
func TestFailedDialWaitsOnlyForItsOwnAgent(t *testing.T) {
	const outage = 400 * time.Millisecond
	for name, c := range map[string]struct {
		cut     bool // the link of the agent that fails
		noticed bool // before the dial fails
		want    string
		took    time.Duration
	}{
		"still there":           {false, false, "exhausted", 0},
		"lost":                  {true, true, "back", outage},
		"lost at the same time": {true, false, "back", outage},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			s := newSetup(t, "default")
			other, leave := s.join("other", "b", "")
			defer leave()
			other.end()
			f, leave := s.join("first", "a", "")
			defer leave()
			synctest.Wait()
			f.dial = func(context.Context) error {
				if c.cut {
					f.end()
					if c.noticed {
						synctest.Wait()
					}
					time.AfterFunc(outage, func() {
						_, leave := s.join("back", "a", "")
						t.Cleanup(leave)
					})
				}
				return &tunnel.DialError{Failure: tunnel.FailExhausted}
			}
			s.goes("10.0.0.1:1", c.want, c.took)
			time.Sleep(2 * tunnel.BackTime)
		})
	}
}

// over is a backend that says why it ended.
type over struct {
	*fake
	err error
}

func (o over) Err() error { return o.err }

// A dial waits for the successor of an agent that was lost or has left, and for none of an agent
// that this server has thrown out.
func TestDialsWaitForNoAgentThatWasThrownOut(t *testing.T) {
	for _, c := range []struct {
		err  error
		took time.Duration
	}{
		{link.ErrDead, tunnel.BackTime},
		{io.ErrUnexpectedEOF, tunnel.BackTime},
		{net.ErrClosed, tunnel.BackTime}, // not the link's own
		{&link.GoAwayError{Code: link.GoAwayShutdown}, tunnel.BackTime},
		{link.ErrClosed, 0},
		{nil, 0}, // it is about to
	} {
		testutil.Bubble(t, fmt.Sprint(c.err), func(t *testing.T) {
			s := newSetup(t, "default")
			b := over{newFake("first"), c.err}
			leave := s.Join(Agent{ID: "a"}, b).Leave
			if c.err != nil {
				b.end()
			}
			synctest.Wait()
			leave()
			s.goes("10.0.0.1:1", "no_agent", c.took)
			time.Sleep(2 * tunnel.BackTime)
		})
	}
}
