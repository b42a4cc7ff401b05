package lanes

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// lingering serves streams that end long before their bytes are delivered.
type lingering time.Duration

func (d lingering) Forward(_ context.Context, _ *tunnel.Flow, answer tunnel.Answer) error {
	far, other := net.Pipe() // only for its addresses
	defer far.Close()
	defer other.Close()
	near, err := answer(tunnel.Wrap(far), nil)
	if err != nil {
		return err
	}
	_ = near.Close()
	time.Sleep(time.Duration(d))
	return nil
}

// A group without streams is idle once their bytes are delivered.
func TestWaitIdleWaitsForDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, serve: lingering(time.Second)}
		peer := r.link()
		defer peer.Close()
		g := New(r.far[0], Options{})
		defer g.Close()
		c := testutil.Must(peer.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t)
		defer c.Close()
		synctest.Wait()
		began := time.Now()
		if err := g.WaitIdle(t.Context()); err != nil || g.Streams() > 0 || time.Since(began) != time.Second {
			t.Errorf("idle after %v: %v", time.Since(began), err)
		}
	})
}

// A lane that is not wanted any more is kept until the bytes of its streams are delivered:
// its end would cut them off.
func TestLaneIsKeptForDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, serve: lingering(time.Minute)}
		first, second := r.link(), r.link()
		defer first.Close()
		defer second.Close()
		g := New(r.far[0], Options{Max: 2, Dial: func(context.Context) (*link.Session, error) { return nil, errors.New("refused") }})
		defer g.Close()
		if !g.Add(r.far[1]) {
			t.Fatal("a lane was not taken in")
		}
		c := testutil.Must(second.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t)
		defer c.Close()
		time.Sleep(time.Minute / 2)
		if n := len(g.Sessions()); n != 2 || g.Streams() != 0 {
			t.Errorf("%d lanes and %d streams during the delivery", n, g.Streams())
		}
		time.Sleep(time.Minute)
		wantLanes(t, g, 1, "after it")
	})
}
