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

func (d lingering) Serve(_ context.Context, _ *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	far, other := net.Pipe() // only for its addresses
	defer far.Close()
	defer other.Close()
	near, err := answer(tunnel.Wrap(far), nil)
	if err == nil {
		_ = near.Close()
		time.Sleep(time.Duration(d))
	}
	ended(err)
}

// A group without streams is idle once their bytes are delivered.
func TestWaitIdleWaitsForDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &rig{t: t, serve: lingering(time.Second)}
		peer := r.link()
		defer peer.Close()
		g := New(r.far[0], Options{})
		defer g.Close()
		testutil.Opened(peer.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t)
		synctest.Wait()
		began := time.Now()
		testutil.Succeeds(t, g.WaitIdle(t.Context()), "WaitIdle")
		testutil.Equal(t, time.Since(began), time.Second, "the wait")
		testutil.Equal(t, g.Streams(), 0, "streams")
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
		testutil.Equal(t, g.Add(r.far[1]), true, "a lane was taken in")
		testutil.Opened(second.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t)
		time.Sleep(time.Minute / 2)
		testutil.Equal(t, len(g.Sessions()), 2, "lanes during the delivery")
		testutil.Equal(t, g.Streams(), 0, "streams during it")
		time.Sleep(time.Minute)
		wantLanes(t, g, 1, "after it")
	})
}

// meeting is what streams deliver to: each holds up its lane's read loop until all
// have come.
type meeting struct {
	come chan struct{}
	all  chan struct{} // closed once they have
}

func (m meeting) Take(c tunnel.Chunk) int {
	m.come <- struct{}{}
	<-m.all
	return c.Len()
}

func (meeting) Flush() {}

func (meeting) Ready() {}

func (meeting) End() {}

func (meeting) Fail(error) {}

// Each lane has a read loop of its own, on which what arrives is decrypted and passed
// on: as many run at once as there are lanes.
func TestReadLoopsRunInParallel(t *testing.T) {
	withGroup(t, MaxLanes, Options{}, func(t *testing.T, _ *rig, g *Group) {
		m := meeting{make(chan struct{}), make(chan struct{})}
		defer close(m.all)
		for i, lane := range g.Sessions() {
			c := testutil.Must(lane.Dial(t.Context(), tunnel.NewFlow("tcp", "echo:1")))(t)
			st := c.(*link.Stream)
			st.Deliver(m)
			n := testutil.Must(st.ReadChunks(make([]tunnel.Chunk, 1)))(t)
			testutil.Equal(t, n, 0, "chunks of lane %d before any was sent", i)
			whisper(t, c)
		}
		for n := range MaxLanes {
			select {
			case <-m.come:
			case <-time.After(time.Second):
				t.Fatalf("%d read loops of %d run at once", n, MaxLanes)
			}
		}
	})
}
