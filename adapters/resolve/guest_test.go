package resolve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/internal/testutil"
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
			testutil.Equal(t, resolveText(g, name), want, "%s", name)
		}
	})
}

// An answer is kept for its TTL, within a bound; a TTL of 0 keeps nothing.
func TestGuestCachesForTheTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: zone(a("www.example.", 60, "192.0.2.1"), soa(10, 10),
			a("long.example.", 604800, "192.0.2.3"), a("never.example.", 0, "192.0.2.2"))}
		g := d.guest(t)
		asked := func(name, want string, n int) {
			t.Helper()
			_, before := d.count()
			testutil.Equal(t, resolveText(g, name), want, "%s", name)
			_, after := d.count()
			testutil.Equal(t, after-before, n, "questions for %s", name)
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
		asked("never.example", "[192.0.2.2]", 2)
		asked("never.example", "[192.0.2.2]", 2)
		asked("long.example", "[192.0.2.3]", 2)
		time.Sleep(10 * time.Minute)
		asked("long.example", "[192.0.2.3]", 2)
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
				testutil.Equal(t, resolveText(g, "www.example"), "[192.0.2.1]", "www.example")
			})
		}
		// One who gives up does not spoil it for the others.
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		_, err := g.Resolve(ctx, "www.example")
		cancel()
		testutil.ErrorIs(t, err, errReached, "giving up")
		testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailResolve, "the failure")
		wg.Wait()
		testutil.Equal(t, fmt.Sprint(d.count()), "1 2", "connections and questions")
	})
}

func TestGuestKeepsAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: zone()}
		g := d.guest(t)
		for i := range 5 {
			resolveText(g, fmt.Sprintf("x%d.example.org", i))
		}
		dials, _ := d.count()
		testutil.Equal(t, dials, 1, "connections for 5 lookups")
		for i := range maxDNSConns {
			testutil.Equal(t, resolveText(g, fmt.Sprintf("y%d.example.org", i)), "no_such_host", "with all slots used before")
		}
		time.Sleep(8 * time.Second)
		synctest.Wait()
		testutil.Equal(t, d.open, 0, "idle connections")
		resolveText(g, "again.example.org")
		d.hangUp() // the server closes it while it is idle: the next lookup must not notice
		synctest.Wait()
		testutil.Equal(t, resolveText(g, "more.example.org"), "no_such_host", "behind a connection that was closed")
	})
}

// A few connections are kept for later lookups, for a time, and until all are closed. One
// with unread bytes is not kept.
func TestIdleConns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p idleConns
		closed := make(chan string, 10)
		put := func(name, unread string) {
			c := newDNSConn(pooledConn{Reader: strings.NewReader(unread), close: func() { closed <- name }})
			_, _ = c.br.Peek(1)
			p.put(c)
		}
		began := time.Now()
		closes := func(want string, after time.Duration) {
			t.Helper()
			testutil.Equal(t, <-closed, want, "closed")
			testutil.Equal(t, time.Since(began), after, "the time until %s is closed", want)
		}
		put("unread", "x")
		closes("unread", 0)
		for range maxIdleDNS {
			put("kept", "")
		}
		put("one too many", "")
		closes("one too many", 0)
		for range maxIdleDNS {
			closes("kept", idleDNS)
		}
		synctest.Wait()
		testutil.Equal(t, p.get() == nil && len(p.conns) == 0, true, "none is left")
		put("last", "")
		p.close()
		closes("last", idleDNS)
		put("late", "")
		closes("late", idleDNS)
	})
}

// pooledConn is a connection with bytes to read.
type pooledConn struct {
	tunnel.Conn
	io.Reader
	close func()
}

func (c pooledConn) Read(p []byte) (int, error) { return c.Reader.Read(p) }
func (c pooledConn) Close() error               { c.close(); return nil }

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
		testutil.Equal(t, resolveText(g, "two.example.org"), "no_such_host", "the answer")
		testutil.AtMost(t, time.Since(start), time.Second, "the time that it took")
	})
}

func TestGuestWithoutAAAA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: func(q dnsmessage.Question, m *dnsmessage.Message) bool {
			return q.Type == dnsmessage.TypeA && zone(a("www.example.", 60, "192.0.2.1"))(q, m)
		}}
		g := d.guest(t)
		start := time.Now()
		testutil.Equal(t, resolveText(g, "www.example"), "[192.0.2.1]", "the answer")
		testutil.AtMost(t, time.Since(start), time.Second, "the time that it took")
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
		"SERVFAIL on a kept connection": {&fakeDNS{answer: func(q dnsmessage.Question, m *dnsmessage.Message) bool {
			if q.Name.String() == "kept.example." {
				return zone(a("kept.example.", 60, "192.0.2.1"))(q, m)
			}
			m.RCode = dnsmessage.RCodeServerFailure
			return true
		}}, true},
		"garbage": {&fakeDNS{answer: func(_ dnsmessage.Question, m *dnsmessage.Message) bool { m.Response = false; return true }}, true},
		// A forwarder whose own answer came cut off may say so, with nothing in it.
		"cut off":  {&fakeDNS{answer: func(_ dnsmessage.Question, m *dnsmessage.Message) bool { m.Truncated = true; return true }}, true},
		"wrong id": {&fakeDNS{answer: func(_ dnsmessage.Question, m *dnsmessage.Message) bool { m.ID += 77; return true }}, true},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			g := c.dns.guest(t)
			_ = resolveText(g, "kept.example")
			start := time.Now()
			_, err := g.Resolve(t.Context(), "www.example")
			if tunnel.FailureOf(err) != tunnel.FailResolve || errors.Is(err, errReached) != c.reached || time.Since(start) > defaultGuestTime {
				t.Errorf("%v, reached %v, after %v", err, errors.Is(err, errReached), time.Since(start))
			}
			g.Close()
			testutil.ErrorIs(t, testutil.Err(g.Resolve(t.Context(), "www.example")), ErrClosed, "after Close")
			c.dns.hangUp()
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
		testutil.AtMost(t, d.maxOpen, 64, "connections at once") // the server notices a closed one a little later
	})
}

func TestProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDNS{answer: zone()} // says NXDOMAIN, which is an answer
		g := d.guest(t)
		testutil.Succeeds(t, g.Probe(t.Context()), "NXDOMAIN")
		d.answer = func(_ dnsmessage.Question, m *dnsmessage.Message) bool {
			m.RCode = dnsmessage.RCodeServerFailure
			return true
		}
		testutil.Succeeds(t, g.Probe(t.Context()), "SERVFAIL")
		d.answer = nil
		ctx := testutil.ContextFor(t, time.Second)
		testutil.Fails(t, g.Probe(ctx), "silence")
	})
}

func TestGuestTriesEveryServerAddress(t *testing.T) {
	d := &fakeDNS{answer: zone(a("www.example.", 60, "192.0.2.1"))}
	g := NewGuest(GuestOptions{Server: func(context.Context) ([]netip.Addr, error) { return addrs("fd00::10", "10.0.0.10"), nil }, Dialer: d})
	t.Cleanup(func() { g.Close(); d.hangUp(); d.wg.Wait() })
	testutil.Equal(t, resolveText(g, "www.example"), "[192.0.2.1]", "www.example")
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
			testutil.Equal(t, resolveText(g, name), want, "%s", name)
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
		testutil.Equal(t, resolveText(g, "www.example"), "[2001:db8::1]", "half an answer")
		failing.Store(false)
		time.Sleep(maxHalf)
		testutil.Equal(t, resolveText(g, "www.example"), "[192.0.2.1 2001:db8::1]", "%v later", maxHalf)
	})
}

// Times and bounds are what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/sidecars.md"
	testutil.Says(t, page, "Answers are kept for their TTL, at most %v minutes, or %v s if those of one kind", int64(maxPositive/time.Minute), int64(maxHalf/time.Second))
	testutil.Says(t, page, "could not be had; absences at most %v s", int64(maxNegative/time.Second))
	testutil.Says(t, page, "Up to %v addresses of a name are kept", maxAddresses)
	testutil.Says(t, page, "has not answered after %v s also", int64(hedgeTime/time.Second))
	testutil.Says(t, page, "until a probe, sent every %v s", int64(probeEvery/time.Second))
	testutil.Says(t, page, "because %v others are under way", maxDNSConns)
}
