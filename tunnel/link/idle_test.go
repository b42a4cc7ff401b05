package link_test

import (
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

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
