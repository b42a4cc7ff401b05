package uplink

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/peers"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

func TestALinkPerAddress(t *testing.T) {
	target := testutil.Echo(t)
	var servers []*fakeServer
	n := new(names)
	var pairs []string
	for _, ip := range []string{"192.0.2.1", "192.0.2.2", "2001:db8::3"} {
		servers = append(servers, newFake(t).Start(t))
		pairs = append(pairs, ip, servers[len(servers)-1].Addr())
	}
	n.set(pairs...)
	s := client(t, n, nil)
	runLinked(t, s, 3)

	// New streams go to the least loaded.
	var conns []tunnel.Conn
	for range 9 {
		c := testutil.Must(s.Dial(t.Context(), tunnel.NewFlow("tcp", target)))(t)
		conns = append(conns, c)
	}
	for l := range s.sessions().links() {
		testutil.Equal(t, l.Streams(), 3, "streams of a link, of 9")
	}
	for _, c := range conns {
		c.Close()
	}

	// One server is gone: no request notices, and it is linked again when back.
	address := servers[0].Addr()
	servers[0].Stop()
	for range 20 {
		testutil.NoError(t, roundTrip(t, s))
	}
	testutil.Eventually(t, "two links", func() bool { return s.Stats().Links == 2 })
	servers[0] = newFake(t).StartAt(t, address)
	testutil.Eventually(t, "the third again", func() bool { return s.Stats().Links == 3 })
	testutil.Equal(t, s.Stats().Lost, 1, "lost links")
}

// A server without an agent is one that can be reached: only who looks is told.
func TestServing(t *testing.T) {
	for _, c := range []struct {
		agents link.Serving
		want   string
	}{
		{link.Serving{}, ""},
		{link.Serving{Told: true}, ""},
		{link.Serving{Told: true, Why: "no connection to any proxy agent"}, "the konnectivity server says: no connection to any proxy agent"},
	} {
		server := newFake(t)
		server.Agents = c.agents
		server.Start(t)
		s := client(t, at("192.0.2.1", server.Addr()), nil)
		testutil.Succeeds(t, s.Serving(), "before there is a link")
		runLinked(t, s, 1)
		got := ""
		if err := s.Serving(); err != nil {
			got = err.Error()
		}
		testutil.Equal(t, got, c.want, "%+v", c.agents)
	}
}

func TestDrainedLinkIsReplacedAndLeft(t *testing.T) {
	server := newFake(t).Start(t)
	n := at("192.0.2.1", server.Addr())
	var left atomic.Int32
	s := client(t, n, func(o *Options) { o.Leave = func() { left.Add(1) } })
	runLinked(t, s, 1)
	c := testutil.Must(s.Dial(t.Context(), tunnel.NewFlow("tcp", testutil.Echo(t))))(t)
	testutil.Equal(t, left.Load(), 0, "calls to leave a server that stays")

	next := newFake(t).Start(t)
	n.set("192.0.2.1", next.Addr())
	server.Drain()
	testutil.Eventually(t, "a link to the next server", func() bool { return s.Stats().Links == 2 })
	testutil.NoError(t, roundTrip(t, s)) // on the new one
	testutil.Eventually(t, "the old link alone with a stream", func() bool { got := s.Stats(); return got.Links == 2 && got.Streams == 1 })
	testutil.Eventually(t, "told to leave, and told again", func() bool { return left.Load() >= 2 })
	testutil.NoError(t, testutil.Err(c.Write([]byte("still here"))))
	testutil.NoError(t, testutil.Err(c.Read(make([]byte, 10))))
	c.Close()
	testutil.Eventually(t, "the drained link gone", func() bool { return s.Stats().Links == 1 })
	testutil.Equal(t, s.Stats().Lost, 0, "lost links, where one was left")
}

// A link that is being left gets nothing new while there is another, however
// busy that is; alone it still serves.
func TestPickAvoidsLeavingLinks(t *testing.T) {
	target := testutil.Echo(t)
	first, second := newFake(t).Start(t), newFake(t).Start(t)
	n := at("192.0.2.1", first.Addr())
	s := client(t, n, nil)
	testutil.NoError(t, roundTrip(t, s))
	n.set("192.0.2.2", second.Addr())
	servers := s.connector.servers
	servers.mu.Lock()
	servers.until = time.Time{}
	servers.mu.Unlock()
	first.Drain()
	testutil.Eventually(t, "the drain seen", func() bool { _, state := s.sessions().pick(); return state == peers.Leaving })
	testutil.NoError(t, roundTrip(t, s)) // it is all there is
	staying := testutil.Must(s.now(t.Context()))(t)
	for range 3 {
		c := testutil.Must(s.Dial(t.Context(), tunnel.NewFlow("tcp", target)))(t)
		defer c.Close()
	}
	testutil.Equal(t, staying.Streams(), 3, "streams on the link that stays")
}

// A link to a server that says that no agent serves gets nothing while there is
// another, however busy that is.
func TestPickAvoidsAgentlessServers(t *testing.T) {
	idle, busy := newFake(t), newFake(t)
	idle.ID, busy.ID = "idle", "busy"
	idle.Agents = link.Serving{Told: true, Why: "no connection to any proxy agent"}
	n := at("192.0.2.1", idle.Start(t).Addr(), "192.0.2.2", busy.Start(t).Addr())
	s := client(t, n, nil)
	runLinked(t, s, 2)
	wantBy(t, s, "busy")
	only := s.sessions().link()
	l := s.sessions().link(only)
	testutil.Holds(t, l != nil && l.Peer().ID == "idle", "the other is not there if need be")
}

// A link that a request finds where there was none before is kept for others.
func TestServerUpgrade(t *testing.T) {
	old := newFake(t).Old().Start(t)
	s := client(t, at("192.0.2.1", old.Addr()), nil)
	testutil.NoError(t, roundTrip(t, s))
	address := old.Addr()
	old.Stop()
	upgraded := newFake(t).StartAt(t, address)
	for range 3 {
		testutil.NoError(t, roundTrip(t, s))
	}
	testutil.Equal(t, upgraded.Handshakes.Load(), 1, "handshakes with the server after its upgrade")
}

func TestAddressesAreLookedUpAnewWhenAllFail(t *testing.T) {
	server := newFake(t).Start(t)
	n := at("192.0.2.1", server.Addr())
	s := client(t, n, func(o *Options) { o.Mode = link.Off })
	testutil.NoError(t, roundTrip(t, s))
	address := server.Addr()
	n.set("192.0.2.2", address) // what answers on the old address now refuses
	n.mu.Lock()
	n.listen["192.0.2.1"] = "127.0.0.1:1"
	n.mu.Unlock()
	testutil.NoError(t, roundTrip(t, s))
}

func TestOldServerIsProbedForReadiness(t *testing.T) {
	for _, mode := range []link.Mode{link.Auto, link.Off} {
		server := newFake(t).Old().Start(t)
		s := client(t, at("192.0.2.1", server.Addr()), func(o *Options) { o.Mode = mode })
		run(t, s)
		testutil.Eventually(t, "ready without a request", func() bool { return s.Ready() == nil })
	}
}

func TestStartWithoutServer(t *testing.T) {
	n := at()
	s := client(t, n, nil)
	run(t, s)
	testutil.Equal(t, tunnel.FailureOf(roundTrip(t, s)), tunnel.FailUnavailable, "a request without a server")
	server := newFake(t).Start(t)
	n.set("192.0.2.1", server.Addr())
	err := roundTrip(t, s)
	if err != nil { // it may have joined Run's attempt, which began before
		err = roundTrip(t, s)
	}
	testutil.NoError(t, err) // the next request finds it at once
}

// A server that comes back is found without a request, also if it has forgotten the
// link.
func TestServersAreRetriedWithoutRequests(t *testing.T) {
	for _, next := range []*fakeServer{newFake(t), newFake(t).Old()} {
		server := newFake(t).Start(t)
		s := client(t, at("192.0.2.1", server.Addr()), nil)
		runLinked(t, s, 1)
		server.Stop()
		testutil.Eventually(t, "not ready", func() bool { return s.Ready() != nil })
		next.StartAt(t, server.Addr())
		testutil.Eventually(t, "ready again", func() bool { return s.Ready() == nil })
		_, old := s.sessions().stay()
		testutil.Equal(t, old, strings.Join(next.Protos, " ") == "http/1.1", "a session without a link, of %v", next.Protos)
	}
}

// A server with links beside one without: once there is a link, it is what
// requests go by.
func TestPickPrefersLinks(t *testing.T) {
	linked, old := newFake(t), newFake(t).Old()
	linked.ID = "linked"
	s := client(t, at("192.0.2.1", linked.Start(t).Addr(), "192.0.2.2", old.Start(t).Addr()), nil)
	run(t, s)
	testutil.Eventually(t, "a session of each kind", func() bool {
		link, connect := s.sessions().stay()
		return link && connect
	})
	wantBy(t, s, "linked")
	got := s.Stats()
	testutil.Equal(t, fmt.Sprint(got.Links, got.Streams), "1 3", "links and streams")
}
