package uplink

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// laned is a Server with a link of two lanes to a fake. A stream keeps the
// second from being dropped until idle is called.
func laned(t *testing.T, server *fakeServer, n *names) (s *Server, l *linkSession, idle func()) {
	t.Helper()
	s = client(t, n, func(o *Options) { o.Lanes, o.ResumeWindow = 2, time.Minute })
	runLinked(t, s, 1)
	l = s.sessions().link()
	second := testutil.Must(s.connector.lane(t.Context(), l.addr, server.Peers()[0].Group))(t)
	held := testutil.Must(second.Dial(t.Context(), tunnel.NewFlow("tcp", testutil.Echo(t))))(t)
	testutil.Equal(t, l.Add(second), true, "the lane was taken in")
	testutil.Eventually(t, "both lanes at the server", func() bool { return server.Links.Load() == 2 })
	return s, l, func() { _ = held.Close() }
}

// The lanes of a link say that they are, and count as one link.
func TestLanesAreOneLink(t *testing.T) {
	server := newFake(t).Start(t)
	s, l, idle := laned(t, server, at("192.0.2.1", server.Addr()))
	defer idle()
	first, second := server.Peers()[0], server.Peers()[1]
	testutil.Holds(t, len(first.Group) == link.GroupSize && second.Group == first.Group && second.ID == first.ID && l.Sessions()[0].Lanes(),
		"the server was told %q and %q by %q and %q", first.Group, second.Group, first.ID, second.ID)
	got := s.Stats()
	testutil.Equal(t, fmt.Sprint(got.Links, got.Lanes), "1 2", "links and lanes")
	links := s.Links()
	testutil.Holds(t, len(links) == 1 && links[0].Stats.Lanes == 2 && !links[0].Heard.IsZero(), "%+v", links)
	_ = l.Sessions()[0].Close()
	testutil.NoError(t, roundTrip(t, s)) // by the other lane
	got = s.Stats()
	testutil.Equal(t, fmt.Sprint(got.Links, got.Lost), "1 0", "links, and lost ones, after one of two lanes was lost")
}

// Without the flag nothing is said of lanes. A server of before is told, and gets
// one link, or CONNECT.
func TestLanesWithServersOfBefore(t *testing.T) {
	plain := newFake(t).Start(t)
	s := client(t, at("192.0.2.1", plain.Addr()), nil)
	testutil.NoError(t, roundTrip(t, s))
	got := plain.Peers()[0]
	testutil.Equal(t, len(got.Features), 0, "features, without the flag")
	before := newFake(t)
	before.NoLanes = true
	before.Start(t)
	s = client(t, at("192.0.2.1", before.Addr()), func(o *Options) { o.Lanes = 2 })
	testutil.NoError(t, roundTrip(t, s))
	testutil.Equal(t, s.sessions().link().Sessions()[0].Lanes(), false, "lanes with a server that does not know them")
	old := newFake(t).Old().Start(t)
	s = client(t, at("192.0.2.1", old.Addr()), func(o *Options) { o.Lanes = 2 })
	for range 3 {
		testutil.NoError(t, roundTrip(t, s))
	}
	testutil.Equal(t, old.Links.Load(), 0, "links of an old server")
	testutil.Equal(t, old.Connects.Load(), 3, "CONNECTs at it")
	testutil.Fails(t, testutil.Err(s.connector.lane(t.Context(), s.connector.servers.addrs[0], "")), "its lane")
}

// A sidecar names the groups that it has lost.
func TestLostLinksAreNamed(t *testing.T) {
	server := newFake(t).Start(t)
	runLinked(t, client(t, at("192.0.2.1", server.Addr()), nil), 1)
	server.Cut()
	testutil.Eventually(t, "another link", func() bool { return len(server.Peers()) == 2 })
	first, second := server.Peers()[0], server.Peers()[1]
	testutil.Equal(t, first.Lost, "", "the groups that it has lost at first")
	testutil.Equal(t, second.Lost, first.Group, "the group that it has lost")
}

// A link that was given up in its handshake is named, too: its server may have it.
func TestLinksGivenUpAreNamed(t *testing.T) {
	server := newFake(t).Start(t)
	c := newTestConnector(t, at("192.0.2.1", server.Addr()))
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.linkOver(gone, testutil.Must(c.connectAny(t.Context()))(t))
	testutil.ErrorIs(t, err, context.Canceled, "the link that is given up")
	defer testutil.Must(c.linkOver(t.Context(), testutil.Must(c.connectAny(t.Context()))(t)))(t).Close()
	named := slices.ContainsFunc(server.Peers(), func(h link.Hello) bool { return len(h.Lost) == link.GroupSize })
	testutil.Holds(t, named, "the next link does not name it")
}

// A server that goes is left by all lanes.
func TestLanesAreLeft(t *testing.T) {
	target := testutil.Echo(t)
	agent := newAgent(t)
	old := resuming(t, agent).Start(t)
	n := at("192.0.2.1", old.Addr())
	s, l, idle := laned(t, old, n)
	var conns []tunnel.Conn
	for _, lane := range l.Sessions() {
		c, err := s.ends.Dialer(tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			if f.Resume.Again() {
				return s.dial(ctx, f)
			}
			return lane.Dial(ctx, f)
		})).Dial(t.Context(), tunnel.NewFlow("tcp", target))
		testutil.NoError(t, err)
		defer c.Close()
		says(t, c, "before")
		conns = append(conns, c)
	}
	idle()
	next := resuming(t, agent).Start(t)
	n.set("192.0.2.1", next.Addr())
	old.Drain()
	testutil.Eventually(t, "the link to next is the only one, and stays", func() bool {
		links := s.Links()
		return next.Links.Load() > 0 && len(links) == 1 && !links[0].Draining
	})
	for _, c := range conns {
		says(t, c, "after")
	}
}
