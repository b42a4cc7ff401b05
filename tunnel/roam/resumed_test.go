package roam

import (
	"testing"
	"time"

	"konnectivity/tunnel"
)

// without is a connection that has lost its carrier, behind what before did with it: an
// acceptor's, made by of, or an opener's where that is nil.
func without(t *testing.T, e *Ends, of *trial, before func(*Conn)) *Conn {
	t.Helper()
	c := e.newConn(lean{}, time.Minute, 0, [16]byte{1}, "dest:1")
	if of == nil {
		c.opening = new(opening)
	}
	if err := e.add(c, of); err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	before(c)
	left := c.broken(c.st, 0, errLost)
	c.mu.Unlock()
	c.detach(left)
	return c
}

// Close leaves nothing that waits for a carrier, nor figures of it: those of a cluster
// that is over count in its server's for ever.
func TestCloseEndsWhatHasNoCarrier(t *testing.T) {
	e := New(Options{Window: time.Minute})
	_ = without(t, e, nil, func(*Conn) {}).Reset(nil)
	c := without(t, e, nil, func(*Conn) {})
	e.Close()
	e.Wait()
	if s := e.Stats(); s.Conns != 0 || s.Without != 0 {
		t.Errorf("%d connections are left, %d of them without a carrier", s.Conns, s.Without)
	}
	if _, err := c.Write([]byte("x")); tunnel.CodeOf(err) != tunnel.CodeGone {
		t.Errorf("it writes %v", err)
	}
}
