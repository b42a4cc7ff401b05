package e2e

import (
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

// A server that tells of servers that nobody has is searched for them, but not
// in a storm of connections.
func TestHugeServerCountIsNoStorm(t *testing.T) {
	t.Parallel()
	w := newSuite(t)
	srv := must(w.StartServer("--server-count=2000000000"))(t)
	ln := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = ln.Close() })
	var accepted atomic.Int32
	go func() {
		for near, err := ln.Accept(); err == nil; near, err = ln.Accept() {
			accepted.Add(1)
			go func() {
				defer near.Close()
				far, err := net.Dial("tcp", suite.Loopback(srv.AgentPort))
				if err != nil {
					return
				}
				defer far.Close()
				go func() { _, _ = io.Copy(far, near); far.Close() }()
				_, _ = io.Copy(near, far)
			}()
		}
	}()
	began := time.Now()
	must(w.StartAgent(srv, "--proxy-server-port="+strconv.Itoa(ln.Addr().(*net.TCPAddr).Port)))(t)
	// The search has a stock of attempts that grows by one a second, and soon it
	// does not even take those that it has.
	eventually(t, patience, "the search slows down", func() (bool, any) {
		before := accepted.Load()
		time.Sleep(3 * time.Second)
		n, seconds := accepted.Load(), int32(time.Since(began)/time.Second)
		t.Logf("%d connections after %d s, %d of them in 3 s", n, seconds, n-before)
		if n > 260+seconds {
			t.Fatalf("%d connections within %d s", n, seconds)
		}
		return n-before <= 60, n
	})
}
