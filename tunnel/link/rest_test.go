package link_test

import (
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// A link without streams keeps neither certificates nor what TLS read into nor a stack that
// has run TLS, and goes on as before when something comes. It fails where a new version of Go
// has these elsewhere.
func TestALinkRests(t *testing.T) {
	testutil.Each(t, map[string]bool{"after the handshake": false, "after bulk": true}, func(t *testing.T, carries bool) {
		near, far := tlsPair(t)
		before := link.TLSBuffers(far.(*tls.Conn))
		testutil.Equal(t, slices.Contains(before, 0), false, "a buffer of none is left: %v", before)
		cfg := link.Config{PingInterval: 50 * time.Millisecond, DeadAfter: patience}
		serves := cfg
		serves.Handler = &tunnel.Forwarder{Dialer: &destinations{}}
		a, b := sessions(t, near, far, cfg, serves)
		kept := near.(*tls.Conn).ConnectionState().PeerCertificates
		testutil.Equal(t, len(kept), 0, "certificates that TLS keeps")
		for range 2 {
			if carries {
				carry(t, a)
			}
			awaitRest(t)
		}
		awaitPings(t, a, 3)
		awaitPings(t, b, 3)
		_, _ = a.Close(), b.Close()
		for _, conn := range []net.Conn{near, far} {
			for _, n := range link.TLSBuffers(conn.(*tls.Conn)) {
				testutil.AtMost(t, n, 1<<10, "bytes of a buffer") // more than the last goodbye took
			}
		}
	})
}

// A link that rests does not keep the record that was read last.
func TestRestKeepsNoRecord(t *testing.T) {
	near, far := tlsPair(t)
	testutil.Must(near.Write(make([]byte, tunnel.RecordSize/2)))(t)
	testutil.Must(io.ReadFull(far, make([]byte, tunnel.RecordSize/2)))(t)
	testutil.Must(near.Write([]byte("more")))(t)
	testutil.Equal(t, link.Rested(far.(*tls.Conn)), 0, "bytes that are kept")
}

// awaitRest waits until two ends of a link rest.
func awaitRest(t *testing.T) {
	t.Helper()
	buf := make([]byte, 1<<20)
	testutil.Eventually(t, "both ends rest", func() bool {
		stacks := string(buf[:runtime.Stack(buf, true)])
		return strings.Count(stacks, "tunnel.AwaitInput(") == 2 && !strings.Contains(stacks, "tls.(*Conn).Read(")
	})
}

// carry sends some records to and fro.
func carry(t *testing.T, by *link.Session) {
	t.Helper()
	c := testutil.Must(by.Dial(t.Context(), tunnel.NewFlow("tcp", "echo:1")))(t)
	defer c.Close()
	sent := make([]byte, 64<<10)
	go func() { _, _ = c.Write(sent) }()
	testutil.Must(io.ReadFull(c, sent))(t)
}

// awaitPings waits until the peer has sent frames n times.
func awaitPings(t *testing.T, ses *link.Session, n int) {
	t.Helper()
	last := ses.Heard()
	testutil.Eventually(t, "pings come", func() bool {
		if heard := ses.Heard(); heard != last {
			last, n = heard, n-1
		}
		return n == 0
	})
}

// Links that rest take the stack that a goroutine begins with, 2 KiB each, and little else of
// the runtime's. Pings are so rare that few links are awake on a processor that is busy. One
// whose stack has grown takes 4 KiB.
func TestALinkRestsOnASmallStack(t *testing.T) {
	if !testutil.ExactMemory {
		t.Skip("the race detector needs more stack")
	}
	const links = 100
	before := testutil.Stacks()
	cfg := link.Config{PingInterval: 2 * time.Second, DeadAfter: patience}
	for range links {
		near, far := tlsPair(t)
		sessions(t, near, far, cfg, cfg)
	}
	each := func() int { return (testutil.Stacks() - before) / (2 * links) }
	testutil.Eventually(t, "links rest on 3.5 KiB each", func() bool { return each() < 7<<9 })
}

// What came in one TLS record with the peer's HELLO is read before the link rests.
func TestFramesBehindHelloAreRead(t *testing.T) {
	near, far := tlsPair(t)
	peer := &rawPeer{t: t, conn: near}
	go peer.send(helloFrame(byte(link.RoleAgent)), frame{tPing, 0, 0, u64(7)})
	testutil.Opened(link.Accept(t.Context(), far, link.Config{Hello: link.Hello{Role: link.RoleServer}}))(t)
	for {
		f := testutil.Must(peer.read())(t)
		if f.typ == tPing && f.flags != 0 {
			break
		}
	}
}

// A ticket that comes behind HELLO is not kept for a dial that would look for the
// certificates which TLS has forgotten.
func TestLateTicketsAreNotKept(t *testing.T) {
	near, far := tlsPair(t)
	sessions(t, near, far, link.Config{}, link.Config{})
	testutil.Equal(t, link.TakesNoTickets(near.(*tls.Conn)), true, "TLS keeps none, or has its Config elsewhere")
}

// A link that does nothing lives on one goroutine, and so does one that did
// something a while ago.
func TestAnIdleLinkHasOneGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		a, b := sessions(t, link.Buffered(near), link.Buffered(far), link.Config{}, link.Config{Handler: &tunnel.Forwarder{Dialer: &destinations{}}})
		quiet := func(when string) {
			t.Helper()
			time.Sleep(3*link.DefaultPingInterval + time.Second)
			synctest.Wait()
			testutil.Equal(t, goroutinesOf("tunnel/link.(*"), 2, "%s, goroutines of two ends", when)
			for _, s := range []*link.Session{a, b} {
				testutil.Succeeds(t, s.Err(), "%s, an end", when)
				testutil.AtMost(t, time.Since(s.Heard()), link.DefaultPingInterval, "%s, the silence", when)
			}
		}
		quiet("at first")
		for range 3 {
			c := testutil.Must(a.Dial(t.Context(), tunnel.NewFlow("tcp", "echo:1")))(t)
			for range 3 {
				passOn(t, c, c, []byte("to and fro"), make([]byte, len("to and fro")))
				time.Sleep(link.DefaultPingInterval)
			}
			_ = c.Close()
			quiet("after a connection")
		}
		_, _ = a.Close(), b.Close()
	})
}

// goroutinesOf counts the bubble's that have a function on their stack.
func goroutinesOf(function string) (n int) {
	buf := make([]byte, 1<<20)
	for _, stack := range strings.Split(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		head, rest, _ := strings.Cut(stack, "\n")
		if strings.Contains(head, "synctest bubble") && strings.Contains(rest, function) {
			n++
		}
	}
	return n
}

// ends counts the connections that have ended.
type ends struct{ closed atomic.Int32 }

func (*ends) Dialed(*tunnel.Flow, time.Duration, error) {}

func (*ends) Unanswered(*tunnel.Flow, time.Duration, error) {}

func (*ends) Opened(*tunnel.Flow) {}

func (e *ends) Closed(*tunnel.Flow, time.Duration, error) { e.closed.Add(1) }

// A connection from one link to another has no goroutine while nothing moves,
// however it ends.
func TestAConnectionBetweenLinksHasNoGoroutine(t *testing.T) {
	for how, end := range map[string]func(all []*link.Session, c tunnel.Conn){
		"in order":           func(_ []*link.Session, c tunnel.Conn) { _ = c.CloseWrite() },
		"closed":             func(_ []*link.Session, c tunnel.Conn) { _ = c.Close() },
		"reset":              func(_ []*link.Session, c tunnel.Conn) { _ = c.Reset(&tunnel.ResetError{}) },
		"its link is lost":   func(all []*link.Session, _ tunnel.Conn) { _ = all[0].Close() },
		"the other is lost":  func(all []*link.Session, _ tunnel.Conn) { _ = all[3].Close() },
		"the process leaves": func(all []*link.Session, _ tunnel.Conn) { _ = all[1].Close() },
	} {
		testutil.Bubble(t, how, func(t *testing.T) {
			ended := &ends{}
			all := between(t, link.Hello{}, nil, &tunnel.Forwarder{Dialer: &destinations{}}, func(to *link.Session) tunnel.Handler {
				return &tunnel.Forwarder{Dialer: to, Observers: []tunnel.Observer{ended}}
			})
			c := testutil.Must(all[0].Dial(t.Context(), tunnel.NewFlow("tcp", "echo:1")))(t)
			for range 2 {
				passOn(t, c, c, []byte("to and fro"), make([]byte, len("to and fro")))
				synctest.Wait()
				if n := goroutinesOf("link.(*Session).serve"); n != 1 { // that of the last link, to the destination
					t.Errorf("%d goroutines serve", n)
				}
			}
			end(all, c)
			synctest.Wait()
			testutil.Equal(t, how != "the process leaves" || all[1].Err() != nil, true, "it has left")
			testutil.Equal(t, ended.closed.Load(), 1, "ends that were told")
			testutil.Equal(t, goroutinesOf("link.(*Session).serve"), 0, "goroutines that serve")
			for _, s := range all {
				_ = s.Close()
			}
		})
	}
}
