package uplink

import (
	"slices"
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
		c, err := s.Dial(t.Context(), tunnel.NewFlow("tcp", target))
		testutil.NoError(t, err)
		conns = append(conns, c)
	}
	for l := range s.sessions().links() {
		if n := l.Streams(); n != 3 {
			t.Errorf("a link has %d streams of 9", n)
		}
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
	if got := s.Stats(); got.Lost != 1 {
		t.Errorf("%+v", got)
	}
}

func TestRunWarmsUp(t *testing.T) {
	p := newPKI(t)
	server := newFake(p).Start(t)
	target := testutil.Echo(t)
	n := at("192.0.2.1", server.Addr())
	s := client(t, p, n, nil)
	if s.Ready() == nil {
		t.Error("ready before anything was tried")
	}
	runLinked(t, s, 1)
	before := n.dials.Load()
	testutil.NoError(t, roundTrip(t, s, target))
	if n.dials.Load() != before {
		t.Error("a request with a warm link made a connection")
	}
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
		if err := s.Serving(); err != nil {
			t.Errorf("before there is a link: %v", err)
		}
		runLinked(t, s, 1)
		got := ""
		if err := s.Serving(); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%+v: %q, want %q", c.agents, got, c.want)
		}
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
	if got := s.Stats().Links; got != maxPerAddress {
		t.Errorf("%d links to one address", got)
	}
}

func TestDrainedLinkIsReplacedAndLeft(t *testing.T) {
	p := newPKI(t)
	target := testutil.Echo(t)
	server := newFake(p).Start(t)
	n := at("192.0.2.1", server.Addr())
	var left atomic.Int32
	s := client(t, p, n, func(o *Options) { o.Leave = func() { left.Add(1) } })
	runLinked(t, s, 1)
	c, err := s.Dial(t.Context(), tunnel.NewFlow("tcp", target))
	testutil.NoError(t, err)
	if left.Load() != 0 {
		t.Error("told to leave a server that stays")
	}

	next := newFake(p).Start(t)
	n.set("192.0.2.1", next.Addr())
	server.Drain()
	testutil.Eventually(t, "a link to the next server", func() bool { return s.Stats().Links == 2 })
	testutil.NoError(t, roundTrip(t, s, target)) // on the new one
	testutil.Eventually(t, "the old link alone with a stream", func() bool { got := s.Stats(); return got.Links == 2 && got.Streams == 1 })
	testutil.Eventually(t, "told to leave, and told again", func() bool { return left.Load() >= 2 })
	_, err = c.Write([]byte("still here"))
	testutil.NoError(t, err)
	got := make([]byte, 10)
	_, err = c.Read(got)
	testutil.NoError(t, err)
	c.Close()
	testutil.Eventually(t, "the drained link gone", func() bool { return s.Stats().Links == 1 })
	if s.Stats().Lost != 0 {
		t.Error("a link that was left counts as lost")
	}
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
	staying, err := s.now(t.Context())
	testutil.NoError(t, err)
	for range 3 {
		c, err := s.Dial(t.Context(), tunnel.NewFlow("tcp", target))
		testutil.NoError(t, err)
		defer c.Close()
	}
	if got := staying.Streams(); got != 3 {
		t.Errorf("%d of 3 streams on the link that stays", got)
	}
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
	if l, c := upgraded.Links.Load(), upgraded.Connects.Load(); l != 1 || c != 0 {
		t.Errorf("%d links, %d CONNECTs after the upgrade", l, c)
	}
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
	if err := roundTrip(t, s, target); tunnel.FailureOf(err) != tunnel.FailUnavailable {
		t.Fatal(err)
	}
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
		if _, old := s.sessions().stay(); old != slices.Equal(next.Protos, []string{"http/1.1"}) {
			t.Errorf("%v: a session without a link: %v", next.Protos, old)
		}
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
	if got := s.Stats(); got.Links != 1 || got.Streams != 3 {
		t.Errorf("%+v", got)
	}
}
