package resolve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// scripted answers after a delay, heeding its context, and counts.
type scripted struct {
	mu     sync.Mutex
	asked  int
	delay  time.Duration
	answer Answer
	err    error
}

func (s *scripted) set(delay time.Duration, answer Answer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delay, s.answer, s.err = delay, answer, err
}

func (s *scripted) Resolve(ctx context.Context, name string) (Answer, error) {
	s.mu.Lock()
	s.asked++
	delay, answer, err := s.delay, s.answer, s.err
	s.mu.Unlock()
	if delay == 0 { // a timer of 0 upsets the race detector beside others that fire then (golang/go#78156)
		return answer, err
	}
	select {
	case <-time.After(delay):
		return answer, err
	case <-ctx.Done():
		return Answer{}, Unavailable(name, "too late", context.Cause(ctx))
	}
}

func (s *scripted) count() int { s.mu.Lock(); defer s.mu.Unlock(); return s.asked }

var (
	guestAnswer  = Answer{Addrs: addrs("10.1.1.1"), Source: FromGuest}
	systemAnswer = Answer{Addrs: addrs("192.0.2.1"), Source: FromSystem}
	unreachable  = Unavailable("n", "", &tunnel.DialError{Failure: tunnel.FailNoAgent})
	servfail     = Unavailable("n", "", errors.Join(errReached, errServFail))
)

func TestFallbackVerdicts(t *testing.T) {
	never := time.Hour
	for name, c := range map[string]struct {
		guest, system *scripted
		source        Source
		failure       tunnel.Failure
		direct, down  bool
		took          time.Duration
		systemAsked   int
	}{
		"guest knows":                {guest: &scripted{answer: guestAnswer}, system: &scripted{}, source: FromGuest},
		"guest is slow but knows":    {guest: &scripted{delay: 1500 * time.Millisecond, answer: guestAnswer}, system: &scripted{answer: systemAnswer}, source: FromGuest, took: 1500 * time.Millisecond, systemAsked: 1},
		"nobody knows":               {guest: &scripted{err: NotFound("n")}, system: &scripted{err: NotFound("n")}, failure: tunnel.FailNoSuchHost, systemAsked: 1},
		"only this side knows":       {guest: &scripted{err: NotFound("n")}, system: &scripted{answer: systemAnswer}, source: FromSystem, direct: true, systemAsked: 1},
		"guest DNS cannot tell":      {guest: &scripted{err: servfail}, system: &scripted{answer: systemAnswer}, source: FromSystem, systemAsked: 1},
		"tunnel down, system knows":  {guest: &scripted{err: unreachable}, system: &scripted{answer: systemAnswer}, source: FromSystem, direct: true, down: true, systemAsked: 1},
		"tunnel down, nobody knows":  {guest: &scripted{err: unreachable}, system: &scripted{err: NotFound("n")}, failure: tunnel.FailResolve, systemAsked: 1},
		"both down":                  {guest: &scripted{err: unreachable}, system: &scripted{err: Unavailable("n", "", nil)}, failure: tunnel.FailResolve, systemAsked: 1},
		"tunnel hangs, system knows": {guest: &scripted{delay: never}, system: &scripted{answer: systemAnswer}, source: FromSystem, direct: true, down: true, took: defaultVerdictTime, systemAsked: 1},
		"tunnel hangs, slow system":  {guest: &scripted{delay: never}, system: &scripted{delay: 900 * time.Millisecond, answer: systemAnswer}, source: FromSystem, direct: true, down: true, took: 1900 * time.Millisecond, systemAsked: 1},
		"tunnel hangs, nobody knows": {guest: &scripted{delay: never}, system: &scripted{err: NotFound("n")}, failure: tunnel.FailResolve, took: defaultVerdictTime, systemAsked: 1},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			h := NewHealth(nil, nil)
			start := time.Now()
			answer, err := Fallback(c.guest, c.system, h, 0).Resolve(t.Context(), "n")
			took := time.Since(start)
			testutil.Equal(t, answer.Source, c.source, "the source")
			testutil.Equal(t, answer.Direct, c.direct, "direct")
			testutil.Equal(t, tunnel.FailureOf(err), c.failure, "the failure")
			testutil.Equal(t, h.Down(), c.down, "down")
			testutil.Equal(t, took, c.took, "the time")
			testutil.Equal(t, c.system.count(), c.systemAsked, "questions to the system")
			testutil.AtMost(t, took, 2*time.Second, "time for a verdict")
		})
	}
}

func TestFallbackCancelled(t *testing.T) {
	for asked, after := range []time.Duration{hedgeTime / 10, hedgeTime * 3 / 2} {
		synctest.Test(t, func(t *testing.T) {
			h := NewHealth(nil, nil)
			guest, system := &scripted{delay: time.Hour}, &scripted{answer: systemAnswer}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(after, cancel)
			err := testutil.Err(Fallback(guest, system, h, 0).Resolve(ctx, "n"))
			testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailCancelled, "the failure")
			testutil.Equal(t, h.Down(), false, "one who gave up says that the tunnel is down")
			testutil.Equal(t, system.count(), asked, "questions to the system")
		})
	}
}

func TestHealthRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes atomic.Int32
		var running, works atomic.Bool
		var changes []bool
		probe := func(ctx context.Context) error {
			probes.Add(1)
			testutil.Equal(t, running.CompareAndSwap(false, true), true, "it is the only probe")
			defer running.Store(false)
			time.Sleep(time.Second)
			if !works.Load() {
				return errors.New("down")
			}
			return nil
		}
		h := NewHealth(probe, func(down bool) { changes = append(changes, down) })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); h.Run(ctx) }()

		guest, system := &scripted{err: unreachable}, &scripted{answer: systemAnswer}
		r := Fallback(guest, system, h, 0)
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				answer, err := r.Resolve(ctx, "n")
				testutil.Holds(t, err == nil && answer.Direct, "the way is not direct: %v, %v", answer, err)
			})
		}
		wg.Wait()
		asked := guest.count()
		for range 10 { // while down, the guest's DNS is left alone
			answer, _ := r.Resolve(ctx, "n")
			testutil.Equal(t, answer.Direct, true, "the way is direct")
			testutil.Equal(t, answer.Source, FromSystem, "the source")
		}
		testutil.Equal(t, guest.count(), asked, "questions to the guest's DNS while the tunnel is down")
		const round = probeEvery + time.Second
		time.Sleep(3*round + time.Second)
		testutil.Equal(t, probes.Load(), 3, "probes in three rounds")
		testutil.Equal(t, h.Down(), true, "the tunnel is down")
		works.Store(true)
		guest.set(0, guestAnswer, nil)
		time.Sleep(round)
		if answer, _ := r.Resolve(ctx, "n"); h.Down() || answer.Direct || answer.Source != FromGuest {
			t.Errorf("after recovery: %+v", answer)
		}
		time.Sleep(time.Hour)
		testutil.Equal(t, probes.Load(), 4, "probes")
		testutil.EqualSlices(t, changes, []bool{true, false}, "changes")
		guest.set(0, Answer{}, unreachable) // and down again
		_, _ = r.Resolve(ctx, "n")
		testutil.Equal(t, h.Down(), true, "down a second time")
		time.Sleep(round + time.Second)
		testutil.Equal(t, probes.Load(), 5, "probes")
		testutil.Equal(t, h.Down(), false, "the tunnel is down")
		cancel()
		<-done
	})
}

func TestFallbackWhileDown(t *testing.T) {
	for name, c := range map[string]struct {
		guest, system *scripted
		source        Source
		failure       tunnel.Failure
		took          time.Duration
	}{
		"only the hosted cluster knows, and the tunnel is up again": {guest: &scripted{answer: guestAnswer}, system: &scripted{err: NotFound("n")}, source: FromGuest},
		"the system cannot tell, and the tunnel is up again":        {guest: &scripted{answer: guestAnswer}, system: &scripted{err: Unavailable("n", "", nil)}, source: FromGuest},
		"nobody knows, and the tunnel is up again":                  {guest: &scripted{err: NotFound("n")}, system: &scripted{err: NotFound("n")}, failure: tunnel.FailNoSuchHost},
		"the tunnel is down": {guest: &scripted{err: unreachable}, system: &scripted{err: NotFound("n")}, failure: tunnel.FailResolve},
		"the tunnel hangs":   {guest: &scripted{delay: time.Hour}, system: &scripted{err: NotFound("n")}, failure: tunnel.FailResolve, took: defaultVerdictTime},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			h := NewHealth(nil, nil)
			h.set(true)
			start := time.Now()
			answer, err := Fallback(c.guest, c.system, h, 0).Resolve(t.Context(), "n")
			testutil.Equal(t, answer.Source, c.source, "the source")
			testutil.Equal(t, answer.Direct, false, "direct")
			testutil.Equal(t, tunnel.FailureOf(err), c.failure, "the failure")
			testutil.Equal(t, time.Since(start), c.took, "the time")
			testutil.Equal(t, h.Down(), true, "down, until a probe says otherwise")
		})
	}
}

func TestSystem(t *testing.T) {
	var err error
	found := addrs("::ffff:192.0.2.1", "192.0.2.1", "2001:db8::1", "0.0.0.0")
	s := System{Lookup: func(context.Context, string, string) ([]netip.Addr, error) { return found, err }}
	testutil.Equal(t, resolveText(s, "n"), "[192.0.2.1 2001:db8::1]", "a name with all kinds of addresses")
	err = &net.DNSError{IsNotFound: true}
	testutil.Equal(t, resolveText(s, "n"), "no_such_host", "a name that does not exist")
	err = &net.DNSError{IsTimeout: true}
	testutil.Equal(t, resolveText(s, "n"), "resolve", "a name server that is silent")
	err, found = nil, nil
	testutil.Equal(t, resolveText(s, "n"), "no_such_host", "a name without addresses")
}

func TestSystemIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := System{Lookup: func(ctx context.Context, _, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		start := time.Now()
		testutil.Equal(t, resolveText(s, "n"), "resolve", "the answer")
		testutil.Equal(t, time.Since(start), 5*time.Second, "the time that it took")
	})
}

// A verdict that comes while the end of the one before is told is told behind it: else
// metrics would have it that the tunnel is in use.
func TestHealthChangesKeepTheirOrder(t *testing.T) {
	held, telling := make(chan struct{}), make(chan struct{})
	var last atomic.Bool
	h := NewHealth(nil, func(down bool) {
		if !down {
			close(telling)
			<-held
		}
		last.Store(down)
	})
	h.set(true)
	var changes sync.WaitGroup
	changes.Go(func() { h.set(false) })
	<-telling
	again := make(chan struct{})
	changes.Go(func() { defer close(again); h.set(true) })
	select {
	case <-again:
	case <-time.After(50 * time.Millisecond): // it waits for its turn
	}
	close(held)
	changes.Wait()
	testutil.Equal(t, h.Down(), true, "the tunnel is down")
	testutil.Equal(t, last.Load(), true, "what was told last")
}

// fakeServices knows namespace/name.
type fakeServices map[string][]netip.Addr

func (f fakeServices) ClusterIPs(_ context.Context, namespace, name string) ([]netip.Addr, error) {
	if found, ok := f[namespace+"/"+name]; ok {
		return found, nil
	}
	if namespace == "down" {
		return nil, Unavailable(name, "", nil)
	}
	return nil, NotFound(name)
}

func TestChainCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := First(ByService(fakeServices{}), &scripted{delay: time.Hour}).Resolve(ctx, "www.example.com")
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailCancelled, "one who gave up is told %v", err)
}

// Only what can name a Service gets into the path of a request to its API.
func TestIsLabel(t *testing.T) {
	for label, want := range map[string]bool{
		"a": true, "0-a": true, strings.Repeat("x", 63): true,
		"": false, "-a": false, "a-": false, "A": false, "a_b": false, "a/b": false, "..": false, "a%2f": false, strings.Repeat("x", 64): false,
	} {
		testutil.Equal(t, IsLabel(label), want, "%q is a label", label)
		_, _, ok := splitService("ns." + label)
		testutil.Equal(t, ok, want || label == "A", "%q can name a namespace", label) // names are folded
	}
}

func TestChain(t *testing.T) {
	services := fakeServices{"ns/svc": addrs("fd00::5", "10.5.5.5"), "com/headless": nil}
	guest := lookupFunc(func(_ context.Context, name string) (Answer, error) {
		if name == "guest.example.org" {
			return guestAnswer, nil
		}
		return Answer{}, NotFound(name)
	})
	chain := PreferIPv4(First(ByService(services), guest))
	for name, want := range map[string]string{
		"svc.ns": "[10.5.5.5 fd00::5]", "SVC.NS.": "[10.5.5.5 fd00::5]", "svc.ns.svc": "[10.5.5.5 fd00::5]", "svc.ns.svc.any.domain": "[10.5.5.5 fd00::5]",
		"svc.ns.com": "no_such_host", "svc": "no_such_host", "headless.com": "no_such_host", "guest.example.org": "[10.1.1.1]",
		"x.down.svc":     "resolve", // not told apart from not existing: unavailable
		"x.down.example": "no_such_host", "../x.ns": "no_such_host", "-svc.ns": "no_such_host",
	} {
		testutil.Equal(t, resolveText(chain, name), want, "%s", name)
	}
}

// A lookup that waits for its turn, since a DNS that says nothing has as many as it may, says
// nothing of the tunnel, neither as its caller leaves nor at its own end. Those that have
// their turn do.
func TestFallbackWaitingForATurn(t *testing.T) {
	for _, verdict := range []time.Duration{0, time.Minute} {
		for _, reached := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				d := &fakeDNS{hangs: !reached}
				h := NewHealth(nil, nil)
				r := Fallback(d.guest(t), &scripted{answer: systemAnswer}, h, verdict)
				var asking sync.WaitGroup
				for i := range 2 * maxDNSConns {
					asking.Go(func() {
						answer, err := r.Resolve(t.Context(), fmt.Sprintf("x%d.example.org", i))
						testutil.Holds(t, err == nil && (!reached || !answer.Direct), "direct %v, %v", answer.Direct, err)
					})
				}
				asking.Wait()
				testutil.Equal(t, h.Down(), !reached, "down after the verdict %v", verdict)
			})
		}
	}
}
