package resume_test

import (
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A peer that sends back all that it gets takes nothing more while nobody takes what it
// sends. A connection that is closed has what was written delivered all the same, and
// whoever still writes to it is let go.
func TestCloseLetsGoOfAPeerThatWaits(t *testing.T) {
	accepted := make(grab, 1)
	w := &world{t: t, serve: accepted}
	w.begin(1, time.Minute)
	c := testutil.Must(w.opener.Dialer(w).Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1")))(t)
	a := <-accepted
	var written, echoed atomic.Int64
	var ends sync.WaitGroup
	ends.Go(func() {
		n, _ := io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
		echoed.Store(n)
		_ = c.Close()
	})
	ends.Go(func() {
		for {
			n, err := a.Write(make([]byte, 1024))
			written.Add(int64(n))
			if err != nil {
				return
			}
		}
	})
	for before := int64(-1); before != written.Load(); time.Sleep(100 * time.Millisecond) {
		before = written.Load() // until both wait
	}
	_ = a.Close()
	over := make(chan struct{})
	go func() { ends.Wait(); close(over) }()
	select {
	case <-over:
	case <-time.After(20 * time.Second):
		_ = a.Reset(nil)
		_ = c.Reset(nil)
		<-over
		t.Fatal("both wait for each other")
	}
	testutil.AtLeast(t, echoed.Load(), written.Load(), "bytes that were delivered")
}

// Close lets go of whoever reads or writes, with a carrier that nothing comes by, and
// without one. What the peer sends is taken all the same.
func TestCloseLetsGoOfWhoWaits(t *testing.T) {
	for i := range 8 {
		acceptor, away, writes := i&1 != 0, i&2 != 0, i&4 != 0
		t.Run(fmt.Sprintf("acceptor: %v, away: %v, writes: %v", acceptor, away, writes), func(t *testing.T) {
			apart(t, func(t *testing.T, w *world, c, peer tunnel.Conn) {
				if acceptor {
					c, peer = peer, c
				}
				if away {
					w.servers[0].cut(toOpener)
					synctest.Wait()
				}
				wait := c.Read
				if writes {
					wait = c.Write
				}
				closeBeside(t, c, wait)
				if !away {
					testutil.Succeeds(t, testutil.Err(peer.Write(make([]byte, 1<<20))), "the peer's write")
				}
				_ = peer.Reset(nil)
				_ = c.Reset(nil)
			})
		})
	}
}

// closeBeside closes an end while one waits to read from it or to write to it.
func closeBeside(t *testing.T, c tunnel.Conn, wait func([]byte) (int, error)) {
	t.Helper()
	let := make(chan error, 1)
	go func() {
		_, err := wait(make([]byte, 1<<20))
		let <- err
	}()
	synctest.Wait()
	_ = c.Close()
	synctest.Wait()
	select {
	case err := <-let:
		testutil.ErrorIs(t, err, net.ErrClosed, "who waits")
	default:
		t.Error("who waits is not let go")
	}
}
