package link_test

import (
	"net"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// A link that does nothing lives on one goroutine, and so does one that did
// something a while ago.
func TestAnIdleLinkHasOneGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		a, b := sessions(t, link.Cork(near), link.Cork(far), link.Config{}, link.Config{Forwarder: &tunnel.Forwarder{Dialer: &destinations{}}})
		quiet := func(when string) {
			t.Helper()
			time.Sleep(3*link.DefaultPingInterval + time.Second)
			synctest.Wait()
			if n := goroutinesOf("link.(*Session)"); n != 2 {
				t.Errorf("%s, two ends have %d goroutines, want 2", when, n)
			}
			for _, s := range []*link.Session{a, b} {
				if s.Err() != nil || time.Since(s.Heard()) > link.DefaultPingInterval {
					t.Errorf("%s, an end was heard %v ago: %v", when, time.Since(s.Heard()), s.Err())
				}
			}
		}
		quiet("at first")
		for range 3 {
			c, err := a.Dial(t.Context(), tunnel.NewFlow("tcp", "echo:1"))
			if err != nil {
				t.Fatal(err)
			}
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
