package resolve

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := NewHealth(nil, nil)
				start := time.Now()
				answer, err := Fallback(c.guest, c.system, h, 0).Resolve(t.Context(), "n")
				took := time.Since(start)
				if answer.Source != c.source || tunnel.FailureOf(err) != c.failure || answer.Direct != c.direct {
					t.Errorf("got %+v, %v", answer, err)
				}
				if h.Down() != c.down || took != c.took || c.system.count() != c.systemAsked {
					t.Errorf("down %v after %v, system asked %d times", h.Down(), took, c.system.count())
				}
				if took > 2*time.Second {
					t.Error("a verdict takes no more than 2 s")
				}
			})
		})
	}
}

func TestFallbackCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := NewHealth(nil, nil)
		guest, system := &scripted{delay: time.Hour}, &scripted{answer: systemAnswer}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Millisecond, cancel)
		if _, err := Fallback(guest, system, h, 0).Resolve(ctx, "n"); tunnel.FailureOf(err) != tunnel.FailCancelled {
			t.Error(err)
		}
		if h.Down() || system.count() != 0 {
			t.Error("one who gave up says nothing about the tunnel")
		}
	})
}

func TestHealthRecovers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var probes atomic.Int32
		var running, works atomic.Bool
		var changes []bool
		probe := func(ctx context.Context) error {
			if probes.Add(1); !running.CompareAndSwap(false, true) {
				t.Error("two probes at once")
			}
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
				if answer, err := r.Resolve(ctx, "n"); err != nil || !answer.Direct {
					t.Error(answer, err)
				}
			})
		}
		wg.Wait()
		asked := guest.count()
		for range 10 { // while down, the guest's DNS is left alone
			if answer, _ := r.Resolve(ctx, "n"); !answer.Direct || answer.Source != FromSystem {
				t.Error(answer)
			}
		}
		if guest.count() != asked {
			t.Error("the guest's DNS was asked while the tunnel is down")
		}
		time.Sleep(98 * time.Second)
		if probes.Load() != 3 || !h.Down() {
			t.Errorf("%d probes in 98 s, down %v", probes.Load(), h.Down())
		}
		works.Store(true)
		guest.set(0, guestAnswer, nil)
		time.Sleep(30 * time.Second)
		if answer, _ := r.Resolve(ctx, "n"); h.Down() || answer.Direct || answer.Source != FromGuest {
			t.Errorf("after recovery: %+v", answer)
		}
		time.Sleep(time.Hour)
		if probes.Load() != 4 || !slices.Equal(changes, []bool{true, false}) {
			t.Errorf("%d probes, changes %v", probes.Load(), changes)
		}
		guest.set(0, Answer{}, unreachable) // and down again
		_, _ = r.Resolve(ctx, "n")
		if !h.Down() {
			t.Error("not down a second time")
		}
		time.Sleep(32 * time.Second)
		if probes.Load() != 5 || h.Down() {
			t.Errorf("%d probes, down %v", probes.Load(), h.Down())
		}
		cancel()
		<-done
	})
}

func TestFallbackWhileDown(t *testing.T) {
	h := NewHealth(nil, nil)
	h.set(true)
	guest := &scripted{answer: guestAnswer}
	for _, c := range []struct {
		err  error
		want tunnel.Failure
	}{{NotFound("n"), tunnel.FailResolve}, {Unavailable("n", "", nil), tunnel.FailResolve}} {
		if _, err := Fallback(guest, &scripted{err: c.err}, h, 0).Resolve(t.Context(), "n"); tunnel.FailureOf(err) != c.want {
			t.Errorf("%v became %v", c.err, err)
		}
	}
	if guest.count() != 0 {
		t.Error("guest was asked")
	}
}

func TestSystem(t *testing.T) {
	var err error
	found := addrs("::ffff:192.0.2.1", "192.0.2.1", "2001:db8::1", "0.0.0.0")
	s := System{Lookup: func(context.Context, string, string) ([]netip.Addr, error) { return found, err }}
	if got := resolveText(s, "n"); got != "[192.0.2.1 2001:db8::1]" {
		t.Error(got)
	}
	err = &net.DNSError{IsNotFound: true}
	if got := resolveText(s, "n"); got != "no_such_host" {
		t.Error(got)
	}
	err = &net.DNSError{IsTimeout: true}
	if got := resolveText(s, "n"); got != "resolve" {
		t.Error(got)
	}
	err, found = nil, nil
	if got := resolveText(s, "n"); got != "no_such_host" {
		t.Error(got)
	}
}

func TestSystemIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := System{Lookup: func(ctx context.Context, _, _ string) ([]netip.Addr, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		}}
		start := time.Now()
		if got := resolveText(s, "n"); got != "resolve" || time.Since(start) != 5*time.Second {
			t.Error(got, time.Since(start))
		}
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
	if !h.Down() || !last.Load() {
		t.Errorf("down is %v, and %v was told last", h.Down(), last.Load())
	}
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
	if tunnel.FailureOf(err) != tunnel.FailCancelled {
		t.Errorf("one who gave up is told %v", err)
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
		if got := resolveText(chain, name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
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
						if answer, err := r.Resolve(t.Context(), fmt.Sprintf("x%d.example.org", i)); err != nil || reached && answer.Direct {
							t.Errorf("direct %v, %v", answer.Direct, err)
						}
					})
				}
				asking.Wait()
				if h.Down() == reached {
					t.Errorf("verdict after %v: down %v", verdict, h.Down())
				}
			})
		}
	}
}
