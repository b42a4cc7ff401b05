package registry

import (
	"fmt"
	"testing"
	"time"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// An agent gives way for twice as long after each denial, up to a bound, until it answers.
func TestDenials(t *testing.T) {
	var l load
	now := tunnel.Moment(time.Hour)
	denied := &tunnel.DialError{Failure: tunnel.FailDenied}
	for _, seconds := range []int{1, 2, 4, 8, 16, 32, 32, 32} {
		l.dialed(0, denied, false, now)
		until := now + tunnel.Moment(time.Duration(seconds)*time.Second)
		testutil.Equal(t, l.denies(until-1), true, "it gives way for %d s", seconds)
		testutil.Equal(t, l.denies(until), false, "it gives way for longer than %d s", seconds)
	}
	l.dialed(0, nil, false, now)
	testutil.Equal(t, l.denies(now), false, "it gives way after an answer")
}

// What an agent costs halves every ten seconds in which it is not asked.
func TestSlownessIsForgotten(t *testing.T) {
	var l load
	now := tunnel.Moment(time.Hour)
	testutil.Equal(t, time.Duration(l.cost(0, now)), minDialTime, "the cost of a new agent")
	l.dialed(80*time.Millisecond, nil, false, now) // a quarter of which counts
	for after, want := range map[time.Duration]time.Duration{
		-time.Nanosecond:    20 * time.Millisecond, // by another processor's clock
		0:                   20 * time.Millisecond,
		latencyHalfLife - 1: 20 * time.Millisecond,
		latencyHalfLife:     10 * time.Millisecond,
		time.Minute:         minDialTime,
	} {
		testutil.Equal(t, time.Duration(l.cost(0, now+tunnel.Moment(after))), want, "the cost after %v", after)
	}
	l.pending.Add(1)
	testutil.Equal(t, time.Duration(l.cost(2, now)), 80*time.Millisecond, "the cost with two streams and a dial")
}

// An agent is blamed for what it denies, and a server for saying that it has an agent where it
// has none. Other answers end the blame, and count as quick.
func TestWhoIsBlamed(t *testing.T) {
	const nobody, blamed, cleared = "nobody", "blamed", "cleared"
	for failure, want := range map[tunnel.Failure]struct{ agent, server string }{
		0:                     {cleared, cleared},
		tunnel.FailRefused:    {cleared, cleared},
		tunnel.FailDenied:     {blamed, cleared},
		tunnel.FailNoAgent:    {nobody, blamed},
		tunnel.FailTimeout:    {nobody, nobody},
		tunnel.FailAgentLost:  {nobody, nobody},
		tunnel.FailNoSuchHost: {nobody, nobody},
	} {
		for far, want := range map[bool]string{false: want.agent, true: want.server} {
			var err error
			if failure != 0 {
				err = &tunnel.DialError{Failure: failure}
			}
			var l load
			l.denials.Store(1)
			l.dialed(time.Second, err, far, tunnel.Moment(time.Hour))
			got := map[int64]string{0: cleared, 1: nobody, 2: blamed}[l.denials.Load()]
			testutil.Holds(t, got == want && (l.latency.Load() > 0) == (want == cleared),
				"%v, of another server: %v: %s, want %s; its latency is %d", failure, far, got, want, l.latency.Load())
		}
	}
}

// crowd is a registry of n agents with an address and two networks each, under
// load that differs.
func crowd(t testing.TB, n int) *Registry {
	strategies := testutil.Must(ParseStrategies("destHost,destCIDR,defaultRoute,default"))(t)
	r := New(nil, strategies, logging.Silent())
	for i := range n {
		ids := testutil.Must(ParseIdentifiers(fmt.Sprintf("ipv4=10.%d.%d.1&cidr=10.%d.%d.0/24&cidr=fd00:%x::/64", i/250, i%250, i/250, i%250, i)))(t)
		f := newFake("x")
		f.streams.Store(int64(i % 17))
		joined := r.Join(Agent{ID: fmt.Sprint(i), Identifiers: ids}, f)
		t.Cleanup(func() { joined.Leave() })
	}
	return r
}

// destinations are found by one strategy each.
var destinations = []struct{ strategy, host string }{
	{"destHost", "10.0.7.1"}, {"destCIDR", "10.0.7.9"}, {"destCIDR-v6", "fd00:7::9"}, {"default", "a.name.example"},
}

// BenchmarkPick must stay below 1 µs with 5,000 agents.
func BenchmarkPick(b *testing.B) {
	for _, agents := range []int{1, 100, 5000} {
		r := crowd(b, agents)
		for _, d := range destinations {
			b.Run(fmt.Sprintf("agents=%d/strategy=%s", agents, d.strategy), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					c, _, _ := r.pick(d.host, &none)
					testutil.Requires(b, c != nil, "nobody")
				}
			})
		}
	}
}

var none tries

func TestPickAllocatesNothing(t *testing.T) {
	r := crowd(t, 1000)
	for _, d := range destinations {
		t.Run(d.strategy, func(t *testing.T) {
			testutil.MaxAllocs(t, 0, func() { r.pick(d.host, &none) })
		})
	}
}
