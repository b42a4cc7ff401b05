package lanes

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

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
