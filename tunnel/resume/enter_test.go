package resume

import (
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A dial that is asked for again, while the opener is being told of the connection that
// has come of the first attempt, waits until it has a carrier, or has come to nothing.
func TestAskedForAgainAsTheFirstIsAnswered(t *testing.T) {
	testutil.EachInBubble(t, map[string]bool{"the opener was told": true, "the opener was lost": false}, func(t *testing.T, told bool) {
		e := newEnds(t)
		token := [16]byte{1}
		first := &dial{answered: make(chan struct{}), cancel: func(error) { t.Error("the connection was given up") }}
		testutil.Must(e.registerDial(t.Context(), token, first))(t)
		c := e.newConn(nil, time.Minute, 0, token, "dest:1")
		testutil.NoError(t, e.add(c, first))
		entered := testutil.Later(func() bool {
			done, err := e.registerDial(t.Context(), token, &dial{number: 1, answered: make(chan struct{})})
			testutil.Succeeds(t, err, "the second dial")
			return done
		})
		synctest.Wait()
		testutil.Equal(t, len(entered), 0, "dials that go on before there is a carrier")
		if !told {
			_ = c.Reset(nil)
		}
		e.unregister(token, first)
		testutil.Equal(t, <-entered, told, "there is a connection")
	})
}

// An opener that asks to resume a connection which is just being made waits until that has
// its first carrier, and then takes the place of it.
func TestResumedAsItIsMade(t *testing.T) {
	e := newEnds(t)
	for i := range 20 {
		token := [16]byte{1, byte(i)}
		r := &tunnel.Resume{Token: token, Window: time.Minute}
		made, resumed := make(chan error, 1), make(chan error, 1)
		e.mu.Lock()
		go func() {
			_, err := e.answer(&tunnel.Flow{Resume: r}, &dial{}, lean{}, nil, func(tunnel.Conn, error) (tunnel.Conn, error) { return lean{}, nil })
			made <- err
		}()
		time.Sleep(2 * time.Millisecond)
		go func() {
			c, err := e.find(token)
			for ; err != nil; c, err = e.find(token) {
			}
			_, err = c.offered(1, 0)
			resumed <- err
		}()
		time.Sleep(2 * time.Millisecond)
		// Both wait for the lock. One that finds it taken again is handed it later, and hands
		// it to the other before it goes on.
		e.mu.Unlock()
		e.mu.Lock()
		time.Sleep(2 * time.Millisecond)
		e.mu.Unlock()
		testutil.NoError(t, <-made)
		testutil.NoError(t, <-resumed)
	}
}

// A dial that a stopping agent cannot complete fails as if its link had been lost, so that the
// opener dials again. This holds for dials that begin then, are under way, or have just
// connected.
func TestDialsThatTheEndCutsAreAskedForAgain(t *testing.T) {
	far, peer := net.Pipe()
	defer far.Close()
	defer peer.Close()
	for when, dial := range map[string]func(ctx context.Context, e *Manager) (tunnel.Conn, error){
		"before": nil,
		"under way": func(ctx context.Context, e *Manager) (tunnel.Conn, error) {
			go e.Close()
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"connected": func(_ context.Context, e *Manager) (tunnel.Conn, error) {
			e.Close()
			return tunnel.Wrap(far), nil
		},
	} {
		e := newEnds(t)
		if dial == nil {
			e.Close()
		}
		h := e.Handler(&tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) { return dial(ctx, e) })})
		told := make(chan error, 1)
		f := tunnel.NewFlow("tcp", "dest:1")
		f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute}
		_ = tunnel.Forward(t.Context(), h, f, func(_ tunnel.Conn, err error) (tunnel.Conn, error) {
			told <- err
			return nil, net.ErrClosed
		})
		select {
		case err := <-told:
			testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailAgentLost, "%s: its opener is told %v", when, err)
		default:
			t.Errorf("%s: its opener is told nothing", when)
		}
	}
}

// resets is a carrier that its peer resets as it has taken what it is given.
type resets struct {
	lean
	tunnel.Sink
	c *Conn
}

func (r resets) Out() tunnel.Sink { return r }

func (r resets) Write(p []byte) (n int, _ error) { return r.Sink.Write(p) }

func (r resets) WriteChunks(src []tunnel.Chunk) error {
	tunnel.ReleaseAll(src)
	watcher{r.c, r, 0}.lost(&tunnel.ResetError{Code: tunnel.CodePeerReset})
	return nil
}

// A write that a carrier has taken has succeeded, whatever its peer does then: the next one
// hears of that.
func TestAWriteThatWasTakenSucceeds(t *testing.T) {
	for _, deadline := range []time.Time{{}, time.Now().Add(time.Hour)} {
		_, c := newEnd(t, nil)
		c.st = resets{c: c}
		_ = c.SetWriteDeadline(deadline)
		testutil.Equal(t, testutil.Must(c.Write([]byte("x")))(t), 1, "bytes by %v", deadline)
		n, err := c.Write([]byte("x"))
		testutil.Equal(t, n, 0, "more bytes by %v", deadline)
		testutil.Equal(t, tunnel.CodeOf(err), tunnel.CodePeerReset, "by %v", deadline)
	}
}
