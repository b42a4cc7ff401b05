package lanes

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

const specification = "../../docs/link-protocol.md"

// A HELLO names a group from the loss of its last lane on, for a time, and not one that was closed
// here.
func TestLostGroupsAreTold(t *testing.T) {
	var lost Lost
	withGroup(t, 2, Options{id: "lost", lost: &lost}, func(t *testing.T, r *rig, g *Group) {
		_, closed := newGroup(t, 1, Options{id: "closed", lost: &lost})
		_ = closed.Close()
		r.far[0].Replaced()
		synctest.Wait()
		testutil.Equal(t, lost.IDs(), "", "lost while a lane is up")
		r.far[1].Replaced()
		<-g.Done()
		testutil.Equal(t, lost.IDs(), "lost", "lost as the group ends")
		time.Sleep(lostTime)
		testutil.Equal(t, lost.IDs(), "", "lost a time ago")
		testutil.Says(t, specification, "within %v s of such a loss", int64(lostTime.Seconds()))
	})
}

// Of many, the last ones are told of.
func TestLostGroupsAreBounded(t *testing.T) {
	var lost Lost
	want := ""
	for i := range 2 * link.MaxLost {
		id := fmt.Sprintf("%0*d", link.GroupSize, i)
		if lost.add(id); i >= link.MaxLost {
			want += id
		}
	}
	testutil.Equal(t, lost.IDs(), want, "the groups")
	testutil.Says(t, specification, "only the first %v count", link.MaxLost)
}
