package resume

import (
	"errors"
	"net"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// quietly is a carrier that has nothing to read, until it is reset. meanwhile is
// what happens once it has said so.
type quietly struct {
	lean
	to        tunnel.Receiver
	meanwhile func()
	end       error
}

func (q *quietly) In() tunnel.Source { return q }

func (q *quietly) Rest(tunnel.Receiver) bool { return false }

func (q *quietly) Deliver(r tunnel.Receiver) bool { q.to = r; return true }

func (q *quietly) Reset(error) error { q.end = net.ErrClosed; return nil }

func (q *quietly) Failed() error { return q.end }

func (q *quietly) Close() error { return nil }

func (q *quietly) ReadChunks([]tunnel.Chunk) (int, error) {
	if q.meanwhile != nil {
		q.meanwhile()
	}
	return 0, q.end
}

// counting counts how often it is told what. A relay that is told the end twice takes
// the process down.
type counting struct {
	tunnel.Receiver
	ready, ends int
}

func (c *counting) Ready() { c.ready++ }

func (c *counting) End() { c.ends++ }

func (c *counting) Fail(error) {}

// read is what who has the turn does.
func (c *counting) read(conn *Conn) {
	if _, err := conn.ReadChunks(make([]tunnel.Chunk, 1)); err != nil {
		c.ends++
	}
}

func delivering(t *testing.T) (*Conn, *quietly, *counting) {
	st, app := &quietly{}, &counting{}
	_, c := newEnd(t, st)
	c.Deliver(app)
	return c, st, app
}

// The end is told once where the read loop tells it before the reader, who found
// nothing, has handed its turn back, whatever gives a turn again then.
func TestEndIsToldOnceBesideAReader(t *testing.T) {
	testutil.Each(t, map[string]bool{"before it": true, "behind it": false}, func(t *testing.T, before bool) {
		c, st, app := delivering(t)
		st.meanwhile = func() {
			st.meanwhile = nil
			if before {
				c.read.ready()
			}
			st.to.End()
		}
		app.read(c)
		if !before {
			c.read.ready() // another carrier
		}
		for range app.ready {
			app.read(c)
		}
		testutil.Equal(t, app.ends, 1, "how often it was told the end")
	})
}

// The end is told once where the connection is reset on this side while the read loop
// is about to tell it.
func TestEndIsToldOnceBesideAReset(t *testing.T) {
	testutil.Each(t, map[string]bool{"the end first": true, "the reset first": false}, func(t *testing.T, first bool) {
		c, st, app := delivering(t)
		app.read(c)
		_ = c.Reset(errors.New("enough"))
		if first {
			st.to.End()
		}
		for range app.ready {
			app.read(c)
		}
		if !first {
			st.to.End()
		}
		testutil.Equal(t, app.ends, 1, "ends that it was told")
		testutil.Equal(t, app.ready, 1, "its turns")
	})
}
