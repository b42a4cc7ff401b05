package lanes

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// crowded is a group of one lane with bulk and a small message on a lossy line, whose
// connections outlive their links.
type crowded struct {
	*rig
	g     *Group
	bulk  []tunnel.Conn
	small tunnel.Conn
}

func newCrowded(t *testing.T, bulk int, opt Options) *crowded {
	options := resume.Options{Window: time.Minute, Budget: link.NewBudget(1 << 30)}
	opener, acceptor := resume.New(options), resume.New(options)
	r := &rig{t: t, serve: acceptor.Handler(&tunnel.Forwarder{Dialer: sink})}
	if opt.Max > 1 {
		opt.Dial = func(context.Context) (*link.Session, error) { return r.link(), nil }
	}
	g := New(r.link(), opt)
	t.Cleanup(func() {
		opener.Close()
		acceptor.Close()
		_ = g.Close()
		r.close()
		opener.Wait()
		acceptor.Wait()
	})
	lossy(g)
	c := &crowded{rig: r, g: g}
	dialer := opener.Dialer(g)
	dial := func() tunnel.Conn {
		return testutil.Must(dialer.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t)
	}
	for range bulk {
		c.bulk = append(c.bulk, dial())
	}
	c.small = dial()
	c.wake(c.bulk[0])
	return c
}

// carry has all carry something for so long.
func (c *crowded) carry(d time.Duration) {
	c.t.Helper()
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(firstSample / 4) {
		for _, conn := range c.bulk {
			carry(c.t, conn)
		}
		whisper(c.t, c.small)
	}
	synctest.Wait()
}

// join has the peer add so many lanes.
func (c *crowded) join(lanes int) {
	c.t.Helper()
	for range lanes {
		testutil.Equal(c.t, c.g.Add(c.link()), true, "a lane was taken in")
	}
}

// streams are how many each lane has, those of the others sorted.
func (c *crowded) streams() string {
	var n []int
	for _, ses := range c.g.Sessions() {
		n = append(n, ses.Streams())
	}
	slices.Sort(n[1:])
	return fmt.Sprint(n)
}

// As soon as a lane has joined the only one, bulk leaves that to the small messages: at
// once where this side has added it, and after firstSample where the peer has.
func TestBulkMovesAsALaneJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowded(t, 1, Options{Max: 2})
		for len(c.g.Sessions()) < 2 {
			c.carry(firstSample / 4)
		}
		testutil.Equal(t, c.streams(), "[1 1]", "streams by lane, with one added")
	})
	synctest.Test(t, func(t *testing.T) {
		c := newCrowded(t, 1, Options{})
		c.join(1)
		c.carry(firstSample + 1)
		testutil.Equal(t, c.streams(), "[1 1]", "streams by lane, with one that has joined")
	})
}

// Bulk spreads over lanes that join when it has left the first.
func TestBulkSpreadsOverLateLanes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrowded(t, 5, Options{})
		c.join(1)
		c.carry(2 * firstSample)
		testutil.Equal(t, c.streams(), "[1 5]", "streams by lane, with one that has joined")
		c.join(3)
		c.carry(2 * sampleEvery)
		testutil.Equal(t, c.streams(), "[1 1 1 1 2]", "streams by lane, with three more")
	})
	synctest.Test(t, func(t *testing.T) { // first two for a lossy line, then more, since a lane is full
		c := newCrowded(t, 5, Options{Max: 4})
		c.carry(6 * sampleEvery)
		testutil.Equal(t, c.streams(), "[1 5]", "streams by lane of a lossy line")
		lossyAt(c.g, link.Line{RTT: time.Hour})
		c.carry(4 * sampleEvery)
		testutil.Equal(t, c.streams(), "[1 1 2 2]", "streams by lane of a full line")
	})
}
