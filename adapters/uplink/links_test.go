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
	p := newPKI(t)
	target := testutil.Echo(t)
	var servers []*fakeServer
	n := new(names)
	var pairs []string
	for _, ip := range []string{"192.0.2.1", "192.0.2.2", "2001:db8::3"} {
		servers = append(servers, newFake(p).Start(t))
		pairs = append(pairs, ip, servers[len(servers)-1].Addr())
	}
	n.set(pairs...)
	s := client(t, p, n, nil)
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
		testutil.NoError(t, roundTrip(t, s, target))
	}
	testutil.Eventually(t, "two links", func() bool { return s.Stats().Links == 2 })
	servers[0] = newFake(p).StartAt(t, address)
	testutil.Eventually(t, "the third again", func() bool { return s.Stats().Links == 3 })
	testutil.Equal(t, s.Stats().Lost, 1, "lost links")
}

func TestRunWarmsUp(t *testing.T) {
	p := newPKI(t)
	server := newFake(p).Start(t)
	target := testutil.Echo(t)
	n := at("192.0.2.1", server.Addr())
	s := client(t, p, n, nil)
	testutil.Fails(t, s.Ready(), "before anything was tried, ready")
	runLinked(t, s, 1)
	before := n.dials.Load()
	testutil.NoError(t, roundTrip(t, s, target))
	testutil.Equal(t, n.dials.Load(), before, "connections, after a request with a warm link")
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
		p := newPKI(t)
		server := newFake(p)
		server.Agents = c.agents
		server.Start(t)
		s := client(t, p, at("192.0.2.1", server.Addr()), nil)
		testutil.Succeeds(t, s.Serving(), "before there is a link")
		runLinked(t, s, 1)
		got := ""
		if err := s.Serving(); err != nil {
			got = err.Error()
		}
		testutil.Equal(t, got, c.want, "%+v", c.agents)
	}
}

func TestSeveralServersBehindOneAddress(t *testing.T) {
	p := newPKI(t)
	server := newFake(p)
	server.Count = 3
	server.Start(t)
	s := client(t, p, at("192.0.2.1", server.Addr()), nil)
	runLinked(t, s, 2)
	time.Sleep(2 * firstPause)
	testutil.Equal(t, s.Stats().Links, maxPerAddress, "links to one address")
}

func TestDrainedLinkIsReplacedAndLeft(t *testing.T) {
	p := newPKI(t)
	target := testutil.Echo(t)
	server := newFake(p).Start(t)
	n := at("192.0.2.1", server.Addr())
	var left atomic.Int32
	s := client(t, p, n, func(o *Options) { o.Leave = func() { left.Add(1) } })
	runLinked(t, s, 1)
	c := testutil.Must(s.Dial(t.Context(), tunnel.NewFlow("tcp", target)))(t)
	testutil.Equal(t, left.Load(), 0, "calls to leave a server that stays")

	next := newFake(p).Start(t)
	n.set("192.0.2.1", next.Addr())
	server.Drain()
	testutil.Eventually(t, "a link to the next server", func() bool { return s.Stats().Links == 2 })
	testutil.NoError(t, roundTrip(t, s, target)) // on the new one
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
	p := newPKI(t)
	target := testutil.Echo(t)
	first, second := newFake(p).Start(t), newFake(p).Start(t)
	n := at("192.0.2.1", first.Addr())
	s := client(t, p, n, nil)
	testutil.NoError(t, roundTrip(t, s, target))
	n.set("192.0.2.2", second.Addr())
	servers := s.connector.servers
	servers.mu.Lock()
	servers.until = time.Time{}
	servers.mu.Unlock()
	first.Drain()
	testutil.Eventually(t, "the drain seen", func() bool { _, state := s.sessions().pick(); return state == peers.Leaving })
	testutil.NoError(t, roundTrip(t, s, target)) // it is all there is
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
	p := newPKI(t)
	idle, busy := newFake(p), newFake(p)
	idle.ID, busy.ID = "idle", "busy"
	idle.Agents = link.Serving{Told: true, Why: "no connection to any proxy agent"}
	n := at("192.0.2.1", idle.Start(t).Addr(), "192.0.2.2", busy.Start(t).Addr())
	s := client(t, p, n, nil)
	runLinked(t, s, 2)
	wantBy(t, s, "busy")
	only := s.sessions().link()
	if l := s.sessions().link(only); l == nil || l.Peer().ID != "idle" {
		t.Error("the other is not there if need be")
	}
}

func TestServerUpgrade(t *testing.T) {
	p := newPKI(t)
	target := testutil.Echo(t)
	old := newFake(p).Old().Start(t)
	s := client(t, p, at("192.0.2.1", old.Addr()), nil)
	testutil.NoError(t, roundTrip(t, s, target))
	address := old.Addr()
	old.Stop()
	upgraded := newFake(p).StartAt(t, address)
	for range 3 {
		testutil.NoError(t, roundTrip(t, s, target))
	}
	testutil.Eventually(t, "the link counted", func() bool { return upgraded.Links.Load() > 0 })
	testutil.Equal(t, upgraded.Links.Load(), 1, "links after the upgrade")
	testutil.Equal(t, upgraded.Connects.Load(), 0, "CONNECTs after it")
	upgraded.Stop()
	newFake(p).Old().StartAt(t, address) // and back again
	testutil.Eventually(t, "the link's end noticed", func() bool { return s.Stats().Links == 0 })
	testutil.NoError(t, roundTrip(t, s, target))
}

func TestAddressesAreLookedUpAnewWhenAllFail(t *testing.T) {
	p := newPKI(t)
	target := testutil.Echo(t)
	server := newFake(p).Start(t)
	n := at("192.0.2.1", server.Addr())
	s := client(t, p, n, func(o *Options) { o.Mode = link.Off })
	testutil.NoError(t, roundTrip(t, s, target))
	address := server.Addr()
	n.set("192.0.2.2", address) // what answers on the old address now refuses
	n.mu.Lock()
	n.listen["192.0.2.1"] = "127.0.0.1:1"
	n.mu.Unlock()
	testutil.NoError(t, roundTrip(t, s, target))
}

func TestOldServerIsProbedForReadiness(t *testing.T) {
	p := newPKI(t)
	for _, mode := range []link.Mode{link.Auto, link.Off} {
		server := newFake(p).Old().Start(t)
		s := client(t, p, at("192.0.2.1", server.Addr()), func(o *Options) { o.Mode = mode })
		run(t, s)
		testutil.Eventually(t, "ready without a request", func() bool { return s.Ready() == nil })
	}
}

func TestStartWithoutServer(t *testing.T) {
	p := newPKI(t)
	target := testutil.Echo(t)
	n := at()
	s := client(t, p, n, nil)
	run(t, s)
	testutil.Equal(t, tunnel.FailureOf(roundTrip(t, s, target)), tunnel.FailUnavailable, "a request without a server")
	server := newFake(p).Start(t)
	n.set("192.0.2.1", server.Addr())
	err := roundTrip(t, s, target)
	if err != nil { // it may have joined Run's attempt, which began before
		err = roundTrip(t, s, target)
	}
	testutil.NoError(t, err) // the next request finds it at once
}

// A server that comes back is found without a request, also if it has forgotten the
// link.
func TestServersAreRetriedWithoutRequests(t *testing.T) {
	p := newPKI(t)
	for _, next := range []*fakeServer{newFake(p), newFake(p).Old()} {
		server := newFake(p).Start(t)
		s := client(t, p, at("192.0.2.1", server.Addr()), nil)
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
	p := newPKI(t)
	linked, old := newFake(p), newFake(p).Old()
	linked.ID = "linked"
	s := client(t, p, at("192.0.2.1", linked.Start(t).Addr(), "192.0.2.2", old.Start(t).Addr()), nil)
	run(t, s)
	testutil.Eventually(t, "a session of each kind", func() bool {
		link, connect := s.sessions().stay()
		return link && connect
	})
	wantBy(t, s, "linked")
	got := s.Stats()
	testutil.Equal(t, fmt.Sprint(got.Links, got.Streams), "1 3", "links and streams")
}
