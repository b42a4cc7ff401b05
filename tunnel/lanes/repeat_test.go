package lanes

import (
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A dial that is struck with its lane, of a connection that is to outlive it, is
// its opener's to repeat: by the same number it would be taken for a late one.
func TestStruckDialIsItsOpenersToRepeat(t *testing.T) {
	withGroup(t, 2, Options{}, func(t *testing.T, r *rig, g *Group) {
		f := tunnel.NewFlow("tcp", "hangs:1")
		f.Resume = &tunnel.Resume{Window: time.Minute}
		failed := make(chan error, 1)
		go func() { _, err := g.Dial(t.Context(), f); failed <- err }()
		synctest.Wait()
		for _, far := range r.far {
			if far.Streams() > 0 {
				_ = far.Close()
			}
		}
		testutil.Equal(t, tunnel.LostInFlight(<-failed), true, "its opener is to repeat it")
		testutil.Equal(t, g.Stats().Opened, 1, "streams that were opened for it")
	})
}

// A dial that fails with the last lane returns once the group has ended, so that its caller finds
// the server lost.
func TestStruckDialFailsOnceItsGroupHasEnded(t *testing.T) {
	for range 200 {
		withGroup(t, 1, Options{}, func(t *testing.T, r *rig, g *Group) {
			failed := make(chan bool, 1)
			go func() {
				_, err := g.Dial(t.Context(), tunnel.NewFlow("tcp", "hangs:1"))
				failed <- err != nil && tunnel.Closed(g.Done())
			}()
			synctest.Wait()
			_ = r.far[0].Close()
			testutil.Holds(t, <-failed, "it lives on")
		})
	}
}
