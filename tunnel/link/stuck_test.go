package link_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// full is a session over a corked socket that takes nothing more, with nobody
// stuck in it yet: whoever comes first would be.
func full(t *testing.T) (*rig, tunnel.Conn) {
	near, far := tcpPair(t)
	r := newRig(t, link.Buffered(near), far, true, link.Config{PingInterval: time.Minute, DeadAfter: time.Minute})
	_, conn := r.dialed()
	r.wantNothing() // the first PING is behind us
	_ = near.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
	for {
		if _, err := near.Write(make([]byte, 64<<10)); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	_ = near.SetWriteDeadline(time.Time{})
	t.Cleanup(func() { _, _, _ = conn.Close(), r.ses.Close(), far.Close() })
	return r, conn
}

// promptly fails the test unless f is done long before the link is found dead.
func promptly(t *testing.T, what string, f func()) {
	t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatalf("%s hangs on a peer that reads nothing", what)
	}
}

func TestNothingHangsOnAFullSocket(t *testing.T) {
	noLeaks(t)
	for what, do := range map[string]func(*rig, tunnel.Conn) error{
		"Dial": func(r *rig, _ tunnel.Conn) error {
			ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
			defer cancel()
			_, err := r.ses.Dial(ctx, tunnel.NewFlow("tcp", "x:1"))
			if tunnel.FailureOf(err) != tunnel.FailTimeout {
				return err
			}
			return nil
		},
		"Close":      func(_ *rig, c tunnel.Conn) error { return c.Close() },
		"Reset":      func(_ *rig, c tunnel.Conn) error { return c.Reset(nil) },
		"CloseWrite": func(_ *rig, c tunnel.Conn) error { return c.CloseWrite() },
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			r, conn := full(t)
			promptly(t, what, func() {
				if err := do(r, conn); err != nil && !errors.Is(err, net.ErrClosed) {
					t.Error(err)
				}
			})
			promptly(t, "the session's Close", func() { _ = r.ses.Close() })
		})
	}
}

// A link that is found dead while the kernel holds its bytes is over at once:
// TLS must not wait behind them to say goodbye.
func TestDeadLinkIsOverAtOnce(t *testing.T) {
	noLeaks(t)
	near, far := tlsPair(t)
	r := newRig(t, near, far, true, link.Config{PingInterval: 100 * time.Millisecond, DeadAfter: time.Second})
	id, conn := r.dialed()
	r.send(frame{tCredit, 0, id, u64(1 << 40)})
	written := make(chan struct{})
	go func() { defer close(written); _, _ = conn.Write(make([]byte, 64<<20)) }()
	<-r.ses.Done()
	start := time.Now()
	<-written
	if took := time.Since(start); took > 3*time.Second {
		t.Errorf("a write was stuck for another %v", took)
	}
	_, _, _ = conn.Close(), r.ses.Close(), far.Close()
}

// A connection that goes on elsewhere does not wait for a write that is stuck in
// a link until that is found dead; a link that has nothing to write is not doubted.
func TestStuckLinkIsDoubtedOnDetach(t *testing.T) {
	const bound = 2 * time.Second
	for name, writing := range map[string]bool{"idle": false, "writing": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe() // takes what is read, no more
				r := newRig(t, link.Buffered(near), far, true, link.Config{PingInterval: time.Minute, DeadAfter: time.Minute})
				_, conn := r.dialed()
				r.wantNothing() // the first PING is behind us
				var write sync.WaitGroup
				if writing {
					write.Go(func() { _, _ = conn.Write(make([]byte, 32<<10)) })
				}
				synctest.Wait()
				st, began := conn.(*link.Stream), time.Now()
				if st.Stuck() != writing {
					t.Errorf("a write is stuck: %v", !writing)
				}
				st.Detach()
				write.Wait()
				if took := time.Since(began); writing && (took != bound || !errors.Is(r.ses.Err(), link.ErrDead)) {
					t.Errorf("the write was stuck for %v, the link ended for %v", took, r.ses.Err())
				}
				time.Sleep(2 * bound)
				if err := r.ses.Err(); !writing && err != nil {
					t.Errorf("the link ended for %v, and nobody wrote", err)
				}
				_, _ = far.Close(), r.ses.Close()
			})
		})
	}
}

// A link that is doubted for two reasons ends for the one that holds, whichever came
// first.
func TestEitherDoubtHolds(t *testing.T) {
	for name, c := range map[string]struct {
		gone  bool // the peer's kernel, too: it takes nothing
		doubt func(ses *link.Session, st *link.Stream)
		bound time.Duration
	}{
		"the write gets on":  {false, func(ses *link.Session, st *link.Stream) { st.Detach(); ses.Probe() }, 6 * time.Second},
		"the write is stuck": {true, func(ses *link.Session, st *link.Stream) { ses.Probe(); st.Detach() }, 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				r := newRig(t, link.Buffered(near), far, true, link.Config{PingInterval: time.Minute, DeadAfter: time.Minute})
				_, conn := r.dialed()
				r.wantNothing() // the first PING is behind us
				var write, read sync.WaitGroup
				write.Go(func() { _, _ = conn.Write(make([]byte, 32<<10)) })
				synctest.Wait()
				began := time.Now()
				c.doubt(r.ses, conn.(*link.Stream))
				if !c.gone {
					read.Go(func() {
						_ = far.SetReadDeadline(time.Time{})
						_, _ = io.Copy(io.Discard, far)
					})
				}
				select {
				case <-r.ses.Done():
					if took := time.Since(began); took != c.bound || !errors.Is(r.ses.Err(), link.ErrDead) {
						t.Errorf("the link ended for %v after %v, want %v", r.ses.Err(), took, c.bound)
					}
				case <-time.After(10 * time.Second):
					t.Error("the link lives")
				}
				_, _ = far.Close(), r.ses.Close()
				write.Wait()
				read.Wait()
			})
		})
	}
}

// A link that is doubted ends soon if its peer says nothing, and goes on if it
// answers, however late within the bound.
func TestDoubt(t *testing.T) {
	const bound = 6 * time.Second
	for name, c := range map[string]struct {
		answer time.Duration // 0: never
		ends   bool
	}{
		"silent":           {0, true},
		"answers":          {10 * time.Millisecond, false},
		"answers late":     {bound - time.Millisecond, false},
		"answers too late": {bound + time.Millisecond, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				near, far := net.Pipe()
				r := newRig(t, link.Buffered(near), far, true, link.Config{PingInterval: time.Minute, DeadAfter: time.Minute})
				var reading sync.WaitGroup
				reading.Go(func() { // as the kernel of a peer does that has gone
					_ = far.SetReadDeadline(time.Time{})
					_, _ = io.Copy(io.Discard, far)
				})
				began := time.Now()
				r.ses.Probe()
				r.ses.Probe() // changes nothing
				if c.answer > 0 {
					time.AfterFunc(c.answer, func() { _, _ = far.Write(frame{tPing, ack, 0, u64(1)}.bytes()) })
				}
				select {
				case <-r.ses.Done():
					if took := time.Since(began); !c.ends || took != bound || !errors.Is(r.ses.Err(), link.ErrDead) {
						t.Errorf("the link ended for %v after %v", r.ses.Err(), took)
					}
				case <-time.After(3 * bound):
					if c.ends {
						t.Error("the link lives")
					}
				}
				_ = r.ses.Close()
				_ = far.Close()
				reading.Wait()
			})
		})
	}
}
