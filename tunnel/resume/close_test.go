package resume_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

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

// A Manager that is closed resets its connections. The error says so at its own end; at the other
// one, it says that this process is gone.
func TestManagersThatAreClosedSaySo(t *testing.T) {
	apart(t, func(t *testing.T, w *world, c, peer tunnel.Conn) {
		w.opener.Close()
		here, there := testutil.Err(c.Read(make([]byte, 1))), testutil.Err(peer.Read(make([]byte, 1)))
		for err, closed := range map[error]bool{here: true, there: false} {
			testutil.Equal(t, tunnel.CodeOf(err), tunnel.CodeGone, "the code of %v", err)
			testutil.Equal(t, tunnel.LossOf(err) == tunnel.LossLocal, closed, "%v is told to be of this process", err)
			testutil.Equal(t, errors.Is(err, net.ErrClosed), closed, "%v is net.ErrClosed", err)
		}
		testutil.Equal(t, here.Error(), "connection reset: this process closed the tunnel that carried it", "what it says")
		_ = peer.Reset(nil)
	})
}

// closeBeside closes an end while one waits to read from it or to write to it.
func closeBeside(t *testing.T, c tunnel.Conn, wait func([]byte) (int, error)) {
	t.Helper()
	let := testutil.Later(func() error { return testutil.Err(wait(make([]byte, 1<<20))) })
	synctest.Wait()
	_ = c.Close()
	if err, is := already(t, "who waits is let go", let); is {
		testutil.ErrorIs(t, err, net.ErrClosed, "who waits")
	}
}

// apart runs f under fake time with a connection's two ends, and the links that they
// are on.
func apart(t *testing.T, f func(t *testing.T, w *world, opener, acceptor tunnel.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		accepted := make(grab, 1)
		w := &world{t: t, serve: accepted, wire: net.Pipe}
		w.begin(1, time.Minute)
		c := testutil.Must(w.opener.Dialer(w).Dial(t.Context(), tunnel.NewFlow("tcp", "dest:1")))(t)
		f(t, w, c, <-accepted)
	})
}

// What was written is delivered, and its end, also where the connection has become a
// plain one and its peer goes on writing as it is closed.
func TestCloseOfAPlainConnectionDelivers(t *testing.T) {
	apart(t, func(t *testing.T, w *world, c, a tunnel.Conn) {
		w.degrades(t, a, []byte("hello, "))
		n, _ := w.agent.Movable()
		testutil.Equal(t, n, 0, "those that can be moved, as it ends with its carrier")
		testutil.Must(a.Write([]byte("world")))(t)
		_ = a.Close()
		testutil.Equal(t, string(testutil.Must(io.ReadAll(c))(t)), "hello, world", "what comes")
		_ = c.Reset(nil)
	})
}

// degrades has memory be short until the test ends, and the agent's end become a plain
// connection as it writes p.
func (w *world) degrades(t *testing.T, a tunnel.Conn, p []byte) {
	t.Helper()
	w.memory.Hold(memory)
	t.Cleanup(func() { w.memory.Hold(-memory) })
	testutil.Must(a.Write(p))(t)
	synctest.Wait()
	n := w.agent.Stats().Degraded
	testutil.Requires(t, n == 1, "%d connections have become plain", n)
}

// deaf is a Receiver that has failed as it had the turn, as half of a relay has whose
// destination takes nothing more.
type deaf struct{ tunnel.Receiver }

func (deaf) Take(tunnel.Chunk) int { return 0 }

func (deaf) Flush() {}

func (deaf) Fail(error) {}

// Bytes for a connection that is closed are dropped, also those that were delivered: the
// peer may send them before it reads the bytes that were written here.
func TestWhatIsDeliveredBehindCloseIsDropped(t *testing.T) {
	for _, moved := range []bool{false, true} {
		apart(t, func(t *testing.T, w *world, c, a tunnel.Conn) {
			a.In().Deliver(deaf{})
			testutil.Must(a.Write(make([]byte, 1<<10)))(t)
			_ = a.CloseFor(io.ErrShortWrite)
			if moved {
				w.servers[0].relink(toOpener)
			}
			done := testutil.Later(func() error { return testutil.Err(c.Write(make([]byte, 1<<20))) })
			time.Sleep(5 * time.Second)
			if err, is := already(t, "the peer's write returns long before the end of the window", done); is {
				testutil.Succeeds(t, err, "the peer's write")
			}
			testutil.Equal(t, len(testutil.Must(io.ReadAll(c))(t)), 1<<10, "bytes that come")
			_ = c.Close()
			synctest.Wait()
			testutil.Equal(t, w.opener.Len()+w.agent.Len(), 0, "ends left")
			_ = c.Reset(nil)
		})
	}
}

// What has come for a connection that is closed counts no more once its peer has reset
// it.
func TestNothingIsHeldOfAResetBehindClose(t *testing.T) {
	apart(t, func(t *testing.T, w *world, c, a tunnel.Conn) {
		a.In().Deliver(deaf{})
		testutil.Must(c.Write(make([]byte, 10<<10)))(t)
		synctest.Wait()
		_ = a.Close()
		_ = c.Reset(nil)
		synctest.Wait()
		testutil.Equal(t, w.agent.Len(), 0, "ends left")
		near, far := w.servers[0].near, w.servers[0].far
		for _, ses := range []*link.Session{near.a, near.b, far.a, far.b} {
			testutil.Equal(t, ses.Stats().Unread, 0, "unread bytes at the %v's peer", ses.Peer().Role)
		}
	})
}

// What has come for a plain connection before its carrier is lost can be read, and its
// end, as from a stream.
func TestWhatCameForAPlainConnectionIsRead(t *testing.T) {
	apart(t, func(t *testing.T, w *world, c, a tunnel.Conn) {
		w.degrades(t, a, []byte("x"))
		testutil.Must(c.Write(make([]byte, 10<<10)))(t)
		_ = c.CloseWrite()
		synctest.Wait()
		w.servers[0].cut(toAgent)
		synctest.Wait()
		testutil.Equal(t, len(testutil.Must(io.ReadAll(a))(t)), 10<<10, "bytes that come")
		_ = a.Close()
		_ = c.Reset(nil)
	})
}

// A deadline that is set, before a write or in the middle of one, ends it in time, also one
// that is over by then. Only an end that keeps what it sends goes on behind a write that was
// interrupted: a plain one has only its carrier to go on by, so it ends.
func TestAWriteDeadlineIsKept(t *testing.T) {
	for i := range 8 {
		plain, before, bound := i&1 != 0, i&2 != 0, time.Duration(i>>2)*10*time.Second
		t.Run(fmt.Sprintf("plain: %v, before: %v, in %v", plain, before, bound), func(t *testing.T) {
			apart(t, func(t *testing.T, w *world, c, a tunnel.Conn) {
				if plain {
					w.degrades(t, a, make([]byte, 1<<10))
				}
				began := time.Now()
				done := make(chan error, 1)
				write := func() {
					_, err := a.Write(make([]byte, 4<<20))
					done <- err
				}
				if !before {
					go write()
					synctest.Wait()
				}
				_ = a.SetWriteDeadline(began.Add(bound))
				if before {
					go write()
				}
				time.Sleep(2 * bound)
				if err, is := already(t, "the write returns", done); is {
					testutil.ErrorIs(t, err, os.ErrDeadlineExceeded, "the write")
				} else {
					_ = a.Reset(nil)
				}
				if plain && !before { // it is over
					testutil.Equal(t, tunnel.CodeOf(testutil.Err(io.Copy(io.Discard, c))), tunnel.CodeGone, "what the peer reads")
				}
				_ = a.Reset(nil)
				_ = c.Reset(nil)
				synctest.Wait()
			})
		})
	}
}

// slow is a Receiver that never hands its turn back, and counts failures.
type slow struct {
	deaf
	fails int
}

func (r *slow) Fail(error) { r.fails++ }

// A slow reader has unlimited time to take the bytes before an end in order, also if the
// carrier of a plain connection is reset or lost behind that end.
func TestAnEndOfAPlainConnectionHasTime(t *testing.T) {
	for _, lost := range []bool{false, true} {
		apart(t, func(t *testing.T, w *world, c, a tunnel.Conn) {
			from, to := a, c
			if lost {
				from, to = c, a
			}
			var r slow
			to.In().Deliver(&r)
			testutil.Must(c.Write(make([]byte, 10<<10)))(t)
			w.degrades(t, a, make([]byte, 10<<10))
			if lost {
				_ = from.CloseWrite()
				synctest.Wait()
				w.servers[0].cut(toOpener)
			} else {
				_ = from.Close() // which resets it behind the end
			}
			synctest.Wait()
			testutil.Equal(t, r.fails, 0, "who is to take it is told of a failure, lost: %v", lost)
			testutil.Succeeds(t, to.Failed(), "where its carrier is lost: %v", lost)
			_ = c.Reset(nil)
			_ = a.Reset(nil)
		})
	}
}

// already returns the value that c has once all goroutines of the bubble wait. The test fails if
// there is none.
func already[T any](t *testing.T, what string, c <-chan T) (v T, is bool) {
	t.Helper()
	synctest.Wait()
	select {
	case v = <-c:
		return v, true
	default:
		t.Errorf("it has not happened: %s", what)
		return v, false
	}
}

// A plain connection that is closed is not over before its carrier has taken the last
// byte, however slowly the peer reads.
func TestCloseOfAPlainConnectionWaitsForCredit(t *testing.T) {
	apart(t, func(t *testing.T, w *world, c, a tunnel.Conn) {
		w.memory.Hold(memory)
		defer w.memory.Hold(-memory)
		first := testutil.Later(func() int {
			n, _ := a.Write(make([]byte, 1<<20)) // until it waits for credit
			return n
		})
		synctest.Wait()
		plain := w.agent.Stats().Degraded
		testutil.Requires(t, plain == 1, "%d connections have become plain", plain)
		more := 0
		for _, n := range []int{60 << 10, tunnel.ChunkSize} { // the most that is kept
			more += n // a Write would wait for the first one
			testutil.NoError(t, a.Out().WriteChunks([]tunnel.Chunk{tunnel.CopyChunk(make([]byte, n))}))
		}
		_ = a.Close()
		got := 0
		for {
			time.Sleep(20 * time.Second)
			n, err := c.Read(make([]byte, 16<<10))
			if got += n; err != nil {
				testutil.Equal(t, err, io.EOF, "what the peer reads")
				break
			}
		}
		testutil.Equal(t, got, <-first+more, "bytes before the end")
		_ = c.Reset(nil)
	})
}
