package agent

import (
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

// A lane says that it is one of the link's. Without lanes nothing is said.
func TestLanesOfOneLink(t *testing.T) {
	server, opts := newServed(t, "server-1", false)
	opts.Lanes = 2
	testutil.Must(connectOnce(t, opts))(t)
	first := server.next().peer.(*link.Session)
	group := first.Peer().Group
	testutil.Requires(t, len(group) == link.GroupSize && first.Lanes(), "the first link's group is %q", group)
	opts.Registerer = nil
	a := testutil.Must(New(opts))(t)
	c := newConnector(a.opts, a.forwarder, a.metrics, a.ends)
	addresses := testutil.Must(a.set.resolver.resolve(t.Context()))(t)
	lane := testutil.Must(c.connectLane(t.Context(), addresses[0], group))(t)
	defer lane.Close()
	got := server.next().peer.(*link.Session).Peer()
	testutil.Holds(t, got.Group == group && got.ID == first.Peer().ID, "the lane came as %v of group %q", got, got.Group)

	opts.Lanes, opts.Registerer = 1, nil
	testutil.Must(connectOnce(t, opts))(t)
	alone := server.next().peer.(*link.Session)
	testutil.Holds(t, !alone.Lanes() && alone.Peer().Group == "", "an agent without lanes offers them")
}
