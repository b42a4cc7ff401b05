package resolve

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/tunnel"
)

func resolveText(r Resolver, name string) string {
	answer, err := r.Resolve(context.Background(), name)
	if err != nil {
		return tunnel.FailureOf(err).Label()
	}
	return fmt.Sprint(answer.Addrs)
}

func TestGuestFinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: zone(a("dual.example.", 60, "192.0.2.1"), a("dual.example.", 60, "2001:db8::1"),
			a("a.b.svc.cluster.local.", 60, "10.1.1.1"), a("github.com.", 60, "192.0.2.7"), a("mapped.example.", 60, "::ffff:192.0.2.9"),
			a("useless.example.", 60, "0.0.0.0"), soa(1, 1))}
		g := d.guest(t)
		for name, want := range map[string]string{
			"dual.example": "[192.0.2.1 2001:db8::1]", "DUAL.example.": "[192.0.2.1 2001:db8::1]", "a.b.svc": "[10.1.1.1]", "a.b": "[10.1.1.1]",
			"a.b.": "no_such_host", "github.com": "[192.0.2.7]", "nobody.example.org": "no_such_host", "mapped.example": "[192.0.2.9]",
			"useless.example": "no_such_host", strings.Repeat("x", 64) + ".example": "no_such_host", "bad..name": "no_such_host",
		} {
			if got := resolveText(g, name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
	})
}

func TestGuestCachesForTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: zone(a("www.example.", 60, "192.0.2.1"), soa(10, 10))}
		g := d.guest(t)
		asked := func(name, want string, n int) {
			t.Helper()
			_, before := d.count()
			if got := resolveText(g, name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
			if _, after := d.count(); after-before != n {
				t.Errorf("%s cost %d questions, want %d", name, after-before, n)
			}
		}
		asked("www.example", "[192.0.2.1]", 2)
		asked("WWW.example", "[192.0.2.1]", 0)
		asked("no.such.example", "no_such_host", 2)
		time.Sleep(9 * time.Second)
		asked("no.such.example", "no_such_host", 0)
		time.Sleep(2 * time.Second)
		asked("no.such.example", "no_such_host", 2)
		asked("www.example", "[192.0.2.1]", 0)
		time.Sleep(50 * time.Second)
		asked("www.example", "[192.0.2.1]", 2)
		g.Forget("www.Example")
		asked("www.example", "[192.0.2.1]", 2)
	})
}

func TestGuestBoundsTTLs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: zone(a("www.example.", 604800, "192.0.2.1"), a("never.example.", 0, "192.0.2.2"))}
		g := d.guest(t)
		resolveText(g, "www.example")
		time.Sleep(10 * time.Minute)
		resolveText(g, "www.example")
		if _, asked := d.count(); asked != 4 {
			t.Errorf("%d questions: an answer was kept for longer than the bound", asked)
		}
		resolveText(g, "never.example")
		resolveText(g, "never.example")
		if _, asked := d.count(); asked != 8 {
			t.Errorf("%d questions: a TTL of 0 was kept", asked)
		}
	})
}

func TestGuestSingleFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: func(q dnsmessage.Question, m *dnsmessage.Message) bool {
			time.Sleep(100 * time.Millisecond)
			return zone(a("www.example.", 60, "192.0.2.1"))(q, m)
		}}
		g := d.guest(t)
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if got := resolveText(g, "www.example"); got != "[192.0.2.1]" {
					t.Error(got)
				}
			})
		}
		// One who gives up does not spoil it for the others.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := g.Resolve(ctx, "www.example")
		cancel()
		if !errors.Is(err, errReached) || tunnel.FailureOf(err) != tunnel.FailResolve {
			t.Errorf("gave up with %v", err)
		}
		wg.Wait()
		if dials, asked := d.count(); dials != 1 || asked != 2 {
			t.Errorf("%d connections, %d questions", dials, asked)
		}
	})
}

func TestGuestKeepsAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: zone()}
		g := d.guest(t)
		for i := range 5 {
			resolveText(g, fmt.Sprintf("x%d.example.org", i))
		}
		if dials, _ := d.count(); dials != 1 {
			t.Errorf("%d connections for 5 lookups", dials)
		}
		time.Sleep(8 * time.Second)
		synctest.Wait()
		if d.open != 0 {
			t.Error("an idle connection stays open")
		}
		resolveText(g, "again.example.org")
		d.hangUp() // the server closes it while it is idle: the next lookup must not notice
		synctest.Wait()
		if got := resolveText(g, "more.example.org"); got != "no_such_host" {
			t.Error(got)
		}
	})
}

func TestGuestLeavesADeadConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var silent atomic.Bool
		d := &fakeDNS{}
		d.answer = func(q dnsmessage.Question, m *dnsmessage.Message) bool {
			return !silent.Load() && zone()(q, m)
		}
		g := d.guest(t)
		resolveText(g, "one.example.org")
		silent.Store(true) // the kept connection is dead; new ones are too, until later
		time.AfterFunc(staleTry-time.Millisecond, func() { silent.Store(false) })
		start := time.Now()
		if got := resolveText(g, "two.example.org"); got != "no_such_host" || time.Since(start) > time.Second {
			t.Errorf("%s after %v", got, time.Since(start))
		}
	})
}

func TestGuestWithoutAAAA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: func(q dnsmessage.Question, m *dnsmessage.Message) bool {
			return q.Type == dnsmessage.TypeA && zone(a("www.example.", 60, "192.0.2.1"))(q, m)
		}}
		g := d.guest(t)
		start := time.Now()
		if got := resolveText(g, "www.example"); got != "[192.0.2.1]" || time.Since(start) > time.Second {
			t.Errorf("%s after %v", got, time.Since(start))
		}
	})
}

func TestGuestFailures(t *testing.T) {
	failing := func(code dnsmessage.RCode) func(dnsmessage.Question, *dnsmessage.Message) bool {
		return func(_ dnsmessage.Question, m *dnsmessage.Message) bool { m.RCode = code; return true }
	}
	refused := &tunnel.DialError{Failure: tunnel.FailNoAgent}
	for name, c := range map[string]struct {
		dns     *fakeDNS
		reached bool
	}{
		"no agent": {&fakeDNS{dialErr: refused}, false},
		"silent":   {&fakeDNS{}, true},
		"dead":     {&fakeDNS{dead: true}, true},
		"SERVFAIL": {&fakeDNS{answer: failing(dnsmessage.RCodeServerFailure)}, true},
		"garbage":  {&fakeDNS{answer: func(_ dnsmessage.Question, m *dnsmessage.Message) bool { m.Response = false; return true }}, true},
		// A forwarder whose own answer came cut off may say so, with nothing in it.
		"cut off":  {&fakeDNS{answer: func(_ dnsmessage.Question, m *dnsmessage.Message) bool { m.Truncated = true; return true }}, true},
		"wrong id": {&fakeDNS{answer: func(_ dnsmessage.Question, m *dnsmessage.Message) bool { m.ID += 77; return true }}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := c.dns.guest(t)
				start := time.Now()
				_, err := g.Resolve(t.Context(), "www.example")
				if tunnel.FailureOf(err) != tunnel.FailResolve || errors.Is(err, errReached) != c.reached || time.Since(start) > defaultGuestTime {
					t.Errorf("%v, reached %v, after %v", err, errors.Is(err, errReached), time.Since(start))
				}
				g.Close()
				if _, err := g.Resolve(t.Context(), "www.example"); !errors.Is(err, ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
				c.dns.hangUp()
			})
		})
	}
}

func TestGuestBoundsConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: func(q dnsmessage.Question, m *dnsmessage.Message) bool {
			time.Sleep(100 * time.Millisecond)
			return zone()(q, m)
		}}
		g := d.guest(t)
		var wg sync.WaitGroup
		for i := range 200 {
			wg.Go(func() { resolveText(g, fmt.Sprintf("n%d.example.org", i)) })
		}
		wg.Wait()
		if d.maxOpen > 64 { // the server notices a closed one a little later
			t.Errorf("%d connections at once", d.maxOpen)
		}
	})
}

func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: zone()} // says NXDOMAIN, which is an answer
		g := d.guest(t)
		if err := g.Probe(t.Context()); err != nil {
			t.Error(err)
		}
		d.answer = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.Probe(ctx); err == nil {
			t.Error("silence is no answer")
		}
	})
}

func TestGuestTriesEveryServerAddress(t *testing.T) {
	d := &fakeDNS{answer: zone(a("www.example.", 60, "192.0.2.1"))}
	g := NewGuest(GuestOptions{Server: func(context.Context) ([]netip.Addr, error) { return addrs("fd00::10", "10.0.0.10"), nil }, Dialer: d})
	t.Cleanup(func() { g.Close(); d.hangUp(); d.wg.Wait() })
	if got := resolveText(g, "www.example"); got != "[192.0.2.1]" {
		t.Error(got)
	}
}

// A forwarder that reaches no other DNS, as in a cluster without the internet, still knows the cluster's names.
func TestGuestAsksOnBehindAServerFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		inside := zone(a("db.prod.svc.cluster.local.", 60, "10.128.0.7"), soa(10, 10))
		d := &fakeDNS{answer: func(q dnsmessage.Question, m *dnsmessage.Message) bool {
			if !strings.HasSuffix(q.Name.String(), ".cluster.local.") {
				m.RCode = dnsmessage.RCodeServerFailure
				return true
			}
			return inside(q, m)
		}}
		g := d.guest(t)
		for name, want := range map[string]string{"db.prod": "[10.128.0.7]", "no.prod": "resolve", "www.example.org": "resolve"} {
			if got := resolveText(g, name); got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
	})
}

// Half an answer, kept for its TTL, would keep a cluster that has no use for that half from the destination.
func TestGuestKeepsHalfAnAnswerShortly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var failing atomic.Bool
		failing.Store(true)
		known := zone(a("www.example.", 600, "192.0.2.1"), a("www.example.", 600, "2001:db8::1"))
		d := &fakeDNS{answer: func(q dnsmessage.Question, m *dnsmessage.Message) bool {
			if q.Type == dnsmessage.TypeA && failing.Load() {
				m.RCode = dnsmessage.RCodeServerFailure
				return true
			}
			return known(q, m)
		}}
		g := d.guest(t)
		if got := resolveText(g, "www.example"); got != "[2001:db8::1]" {
			t.Error(got)
		}
		failing.Store(false)
		time.Sleep(maxHalf)
		if got := resolveText(g, "www.example"); got != "[192.0.2.1 2001:db8::1]" {
			t.Errorf("%v later: %s", maxHalf, got)
		}
	})
}
