package link_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// basin is a Sink that takes all.
type basin struct {
	tunnel.Sink
	take    func(n int) // called for each TryWrite
	flushed atomic.Bool
}

func (b *basin) Nonblocking() bool { return true }

func (b *basin) TryWrite(c tunnel.Chunk) int {
	b.flushed.Store(false)
	b.take(c.Len())
	return c.Len()
}

func (b *basin) Flush() { b.flushed.Store(true) }

// A keystroke is sent on although another stream's bulk leaves the read loop
// no moment without more to read.
func TestSmallMessageIsFlushedBesideEndlessBulk(t *testing.T) {
	noLeaks(t)
	key, bulk := &basin{take: func(int) {}}, &basin{}
	keyEnd := tunnel.With(tunnel.Wrap(newLoop()), tunnel.Parts{Out: key})
	bulkEnd := tunnel.With(tunnel.Wrap(newLoop()), tunnel.Parts{Out: bulk})
	started, arrived := make(chan struct{}), make(chan struct{})
	taken, late := 0, atomic.Bool{}
	bulk.take = func(n int) {
		if taken == 0 { // let all the rest gather in the kernel
			close(started)
			<-arrived
		}
		taken += n
		if taken > 100<<10 && !key.flushed.Load() {
			late.Store(true)
		}
	}
	dialer := tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		if f.Address == "key:1" {
			return keyEnd, nil
		}
		return bulkEnd, nil
	})
	near, far := tcpPair(t)
	_ = near.(*net.TCPConn).SetReadBuffer(1 << 20)
	r := newRig(t, link.Buffered(near), far, true, link.Config{Handler: &tunnel.Forwarder{Dialer: dialer}})
	defer r.end()
	r.open(2, "key:1")
	r.open(4, "bulk:1")
	// A relay has its streams deliver before it pumps what cannot.
	testutil.Eventually(t, "both relays to run", func() bool { return pumps() == 2 })
	r.send(frame{tData, 0, 2, []byte("k")}, frame{tData, 0, 4, make([]byte, 1000)})
	<-started
	for range 10 {
		r.send(frame{tData, 0, 4, make([]byte, 12<<10)})
	}
	close(arrived)
	testutil.Eventually(t, "flush", func() bool { return key.flushed.Load() && bulk.flushed.Load() })
	testutil.Equal(t, late.Load(), false, "a small message waited for the end of the bulk beside it")
	_, _ = keyEnd.Close(), bulkEnd.Close()
}

// pumps counts goroutines that move bytes of a relay from one end to the other.
func pumps() int {
	all := make([]byte, 1<<20)
	all = all[:runtime.Stack(all, true)]
	return bytes.Count(all, []byte("tunnel.(*direction).pump("))
}

// What was read ahead of a socket does not cost the goroutine that a stream
// spares the relay which writes to it.
func TestWrappedSocketsTakeBytesOnTheSpot(t *testing.T) {
	noLeaks(t)
	testutil.Each(t, map[string]func(tunnel.Conn) tunnel.Conn{
		"bare":       func(c tunnel.Conn) tunnel.Conn { return c },
		"read ahead": func(c tunnel.Conn) tunnel.Conn { return tunnel.Unread(c, []byte("ahead")) },
	}, func(t *testing.T, wrap func(tunnel.Conn) tunnel.Conn) {
		here, there := tcpPair(t)
		dialer := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
			return wrap(tunnel.Wrap(here)), nil
		})
		near, far := tcpPair(t)
		r := newRig(t, link.Buffered(near), far, true, link.Config{Handler: &tunnel.Forwarder{Dialer: dialer}})
		defer r.end()
		r.open(2, "x:1")
		r.send(frame{tData, 0, 2, []byte("ping")})
		given(t, there, "ping")
		testutil.Eventually(t, "one goroutine, which waits for the socket", func() bool { return pumps() == 1 })
		_ = there.Close()
	})
}

// given wants a socket to read the bytes of want.
func given(t *testing.T, c net.Conn, want string) {
	t.Helper()
	got := make([]byte, len(want))
	testutil.NoError(t, testutil.Err(io.ReadFull(c, got)))
	testutil.Equal(t, string(got), want, "what the socket is given")
}

// Bytes read ahead of a stream come before those that it delivers.
func TestReadAheadOfAStreamThatDelivers(t *testing.T) {
	noLeaks(t)
	here, there := tcpPair(t)
	done := make(chan error, 1)
	near, far := tcpPair(t)
	r := newRig(t, link.Buffered(near), far, true, link.Config{PingInterval: time.Hour, DeadAfter: time.Hour})
	defer r.end()
	id, conn := r.dialed()
	r.send(frame{tData, 0, id, []byte("first ")})
	testutil.Eventually(t, "the first bytes", func() bool { return r.ses.Stats().Unread == len("first ") })
	go func() {
		relay := &tunnel.Relay{A: tunnel.Unread(conn, []byte("ahead ")), B: tunnel.Wrap(here)}
		done <- relay.Run(context.Background())
	}()
	want := "ahead first "
	for _, more := range []string{"second ", "third"} {
		given(t, there, want)
		want = more
		r.send(frame{tData, 0, id, []byte(more)})
	}
	r.send(frame{tData, 1, id, nil})
	testutil.Equal(t, string(testutil.Must(io.ReadAll(there))(t)), want, "the rest, to the end")
	_ = there.Close()
	testutil.Succeeds(t, <-done, "the relay")
}

// stuck is a Sink that takes nothing.
type stuck struct{ tunnel.Sink }

func (stuck) Nonblocking() bool { return true }

func (stuck) TryWrite(tunnel.Chunk) int { return 0 }

func (stuck) Flush() {}

// A reset goes on to a destination that takes nothing, and frees what waits
// for it, although the relay is stuck in a write there.
func TestResetPassesAStalledDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end := &deaf{loop: newLoop()}
		dst := tunnel.With(tunnel.Wrap(end), tunnel.Parts{Out: stuck{tunnel.Wrap(end).Out()}})
		dialer := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return dst, nil })
		near, far := net.Pipe()
		r := newRig(t, link.Buffered(near), far, true, link.Config{Handler: &tunnel.Forwarder{Dialer: dialer}})
		r.open(2, "x:1")
		synctest.Wait() // the stream delivers
		r.send(frame{tData, 0, 2, make([]byte, 1000)})
		synctest.Wait() // the relay is stuck
		r.send(frame{tReset, 0, 2, u16(1)})
		time.Sleep(10 * time.Second) // sooner than the link, too, would be found dead
		end.mu.Lock()
		cause := end.closed
		end.mu.Unlock()
		if code := tunnel.CodeOf(cause); code != tunnel.CodePeerReset {
			t.Errorf("the destination was told %v, want what the peer said", cause)
			_ = dst.Close()
		}
		r.end()
	})
}

// leaver ends its own stream while it is offered the first bytes.
type leaver struct {
	tunnel.Receiver // nil: nothing else is called
	end             func()
	kept            int // what Take returns
	turns           chan struct{}
}

func (l *leaver) Take(tunnel.Chunk) int { l.end(); return l.kept }

func (l *leaver) Flush() {}

func (l *leaver) Fail(error) {}

func (l *leaver) Ready() { l.turns <- struct{}{} }

// A Receiver may end the Conn that delivers to it from within Take. It is then
// given a last turn, whose ReadChunks tells the end, and nothing stays behind.
func TestTakeMayEndItsConn(t *testing.T) {
	noLeaks(t)
	for name, end := range map[string]func(tunnel.Conn) error{
		"reset": func(c tunnel.Conn) error { return c.Reset(nil) },
		"close": tunnel.Conn.Close,
	} {
		for _, last := range []byte{0, 1} {
			for _, kept := range []int{0, 4} {
				t.Run(fmt.Sprintf("%s/fin %d/kept %d", name, last, kept), func(t *testing.T) {
					near, far := tcpPair(t)
					r := newRig(t, link.Buffered(near), far, true, link.Config{PingInterval: time.Hour, DeadAfter: time.Hour})
					defer r.end()
					id, conn := r.dialed()
					l := &leaver{end: func() { _ = end(conn) }, kept: kept, turns: make(chan struct{}, 2)}
					in, chunks := conn.In(), make([]tunnel.Chunk, 4)
					testutil.Equal(t, in.Deliver(l), true, "the stream delivers")
					testutil.Equal(t, testutil.Must(in.ReadChunks(chunks))(t), 0, "chunks")
					r.send(frame{tData, last, id, []byte("some bytes")})
					promptly(t, "the last turn", func() { <-l.turns })
					n, err := in.ReadChunks(chunks)
					testutil.Equal(t, n, 0, "chunks of the last turn")
					testutil.ErrorIs(t, err, net.ErrClosed, "the last turn")
					if name == "reset" {
						r.wantType(tReset, id)
					}
					r.send(frame{tData, 0, id, []byte("late")}) // to a stream that is gone
					testutil.Equal(t, len(l.turns), 0, "turns after the end")
				})
			}
		}
	}
}

// laggard is a Handler that ends its direction at once and delivers the other later.
type laggard struct{ delivered chan struct{} }

func (l laggard) Serve(_ context.Context, _ *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	c, err := answer(tunnel.Wrap(newLoop()), nil)
	if err != nil {
		ended(err)
		return
	}
	_ = c.CloseWrite()
	<-l.delivered
	ended(c.Close())
}

// A stream that both sides have ended keeps its link from being closed until
// what it carried is delivered.
func TestWaitIdleWaitsForDelivery(t *testing.T) {
	l := laggard{make(chan struct{})}
	r := tcpRig(t, true, link.Config{Handler: l})
	r.open(2, "x:1")
	r.send(frame{tData, 1, 2, []byte("tail")})
	testutil.Eventually(t, "the stream's end", func() bool { return r.ses.Streams() == 0 })
	ctx := testutil.ContextFor(t, 50*time.Millisecond)
	testutil.Fails(t, r.ses.WaitIdle(ctx), "the wait for an idle link, while it delivers")
	close(l.delivered)
	testutil.Succeeds(t, r.ses.WaitIdle(context.Background()), "the wait for an idle link")
}
