package resume

import (
	"context"
	"fmt"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// leftover is a carrier that tells how it was given up.
type leftover struct {
	lean
	why error
}

func (l *leftover) Reset(why error) error { l.why = why; return nil }

func (l *leftover) Detach() { l.why = errLost }

// without is a connection that has lost its carrier, behind what before did with it: an
// acceptor's, made by of, or an opener's where that is nil.
func without(t *testing.T, e *Manager, of *dial, before func(*Conn)) *Conn {
	t.Helper()
	c := e.newConn(lean{}, time.Minute, 0, [16]byte{1}, "dest:1")
	if of == nil {
		c.token = newToken()
		c.opening = &opening{dialer: tunnel.DialerFunc(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})}
	}
	testutil.NoError(t, e.add(c, of))
	c.mu.Lock()
	before(c)
	c.step(c.m.CarrierLost(0, errLost, time.Now()))
	c.mu.Unlock()
	for at := Detaching; at == Detaching || at == Draining; time.Sleep(time.Millisecond) {
		c.mu.Lock()
		at = c.m.carrier
		c.mu.Unlock()
	}
	return c
}

// An acceptor that nobody uses any more is over where its opener is found to have taken
// all. An opener that still writes is told so, and does not take it for one more loss.
func TestResumedAfterAllWasTaken(t *testing.T) {
	e := newEnds(t)
	without(t, e, &dial{}, func(c *Conn) {
		c.settle(c.m.Close())
		c.m.Out.Next(make([]tunnel.Chunk, 1))
		c.settle(c.m.Sent())
	})
	st := &leftover{}
	r := &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: 1, Taken: 1}
	err := e.resume(&tunnel.Flow{Request: tunnel.Request{Address: "dest:1"}, Resume: r}, func(tunnel.Conn, error) (tunnel.Conn, error) { return st, nil })
	testutil.NoError(t, err)
	testutil.Equal(t, e.Len(), 0, "connections")
	testutil.Equal(t, tunnel.CodeOf(st.why), tunnel.CodeCancelled, "what it was reset with")
}

// Close leaves nothing that waits for a carrier, nor figures of it: those of a cluster
// that is over count in its server's for ever.
func TestCloseEndsWhatHasNoCarrier(t *testing.T) {
	e := New(Options{Window: time.Minute})
	_ = without(t, e, nil, func(*Conn) {}).Reset(nil)
	c := without(t, e, nil, func(*Conn) {})
	e.Close()
	e.Wait()
	s := e.Stats()
	testutil.Equal(t, fmt.Sprint(s.Conns, s.Detached), "0 0", "connections that are left, and those without a carrier")
	testutil.Equal(t, tunnel.CodeOf(testutil.Err(c.Write([]byte("x")))), tunnel.CodeGone, "it writes")
}

// A peer that claims in its answer to have taken what it was not sent is told so.
func TestLieInAnAnswer(t *testing.T) {
	e := newEnds(t)
	var epoch uint32
	c := without(t, e, nil, func(*Conn) {})
	for epoch = 0; epoch == 0; time.Sleep(time.Millisecond) { // it asks
		c.mu.Lock()
		epoch = c.m.epoch
		c.mu.Unlock()
	}
	st := &leftover{}
	r := &tunnel.Resume{Epoch: epoch, Granted: tunnel.Grant{Window: time.Minute, Taken: 1}}
	if again := c.redialSucceeded(st, &tunnel.Flow{Resume: r}); again != 0 || e.Len() != 0 || tunnel.CodeOf(st.why) != tunnel.CodeProtocol {
		t.Errorf("%d connections, reset with %v", e.Len(), st.why)
	}
}
