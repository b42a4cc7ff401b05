package roam_test

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/tunnel"
)

// A peer that sends back all that it gets takes nothing more while nobody takes what it
// sends. A connection that is closed has what was written delivered all the same, and
// whoever still writes to it is let go.
func TestCloseLetsGoOfAPeerThatWaits(t *testing.T) {
	accepted := make(grab, 1)
	w := &world{t: t, serve: accepted}
	w.begin(1, time.Minute)
	c, err := w.opener.Dialer(w).Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1"))
	if err != nil {
		t.Fatal(err)
	}
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
	if got, want := echoed.Load(), written.Load(); got < want {
		t.Errorf("%d of %d bytes were delivered", got, want)
	}
}
