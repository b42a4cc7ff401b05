package server

import (
	"maps"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// While a tenant is held up, nothing more is read of its sidecars' links; others'
// are read.
func TestAHeldTenantsLinksAreNotRead(t *testing.T) {
	const held = 400 * time.Millisecond
	s := startSharers(t)
	red, blue := s.add("red", ""), s.add("blue", "")
	for _, c := range []*sharer{blue, red} {
		c.hasAgent()
		ses := testutil.Must(c.clientLink())(t)
		began := time.Now()
		red.cluster().hold.For(held)
		for range 3 { // what is being read when the hold begins still comes
			conn := testutil.Must(ses.Dial(t.Context(), tunnel.NewFlow("tcp", "10.0.0.1:443")))(t)
			conn.Close()
		}
		took := time.Since(began)
		t.Logf("%s: dials took %v", c.name, took)
		testutil.Holds(t, c != red || took >= held, "red's dials took %v after a hold of %v began", took, held)
	}
}

// The same with agents' links: a ping waits for its answer.
func TestAHeldTenantsAgentsAreNotRead(t *testing.T) {
	const held = 400 * time.Millisecond
	s := startSharers(t)
	red := s.add("red", "")
	ses, err := s.linked(s.agentAt, secureFor(red.serverName(), red.cert, link.ALPN), link.Config{
		Hello: link.Hello{Role: link.RoleAgent, ID: "one"}, PingInterval: 20 * time.Millisecond,
	})
	testutil.NoError(t, err)
	red.has(1)
	s.eventually("a round trip that was held up", func() bool {
		red.cluster().hold.For(held) // again, lest it is over before anything is read
		return ses.RTT() > held/20
	})
}

// A server without tenants holds up nobody.
func TestNoHoldWithoutTenants(t *testing.T) {
	testutil.Holds(t, startServer(t).own.held() == nil, "its links have a hold")
}

// The meter sees what passes, between looks only of those who carried something
// before. It has clusters of its own, since those of a server belong to its keepFair.
func TestTheMeter(t *testing.T) {
	newCarrier := func(name string) *cluster {
		return &cluster{name: name, forwarder: &tunnel.Forwarder{Total: new(tunnel.Totals)}}
	}
	red, blue := newCarrier("red"), newCarrier("blue")
	m := &meter{each: func(do func(*cluster)) { do(red); do(blue) }}
	m.look()
	expect := func(what string, read func() (map[string]int64, time.Duration), want map[string]int64) {
		t.Helper()
		carried, _ := read()
		testutil.Holds(t, maps.Equal(carried, want), "%s: carried %v, want %v", what, carried, want)
	}
	red.forwarder.Total.Down.Add(3)
	red.forwarder.Total.Up.Add(4)
	expect("a look", m.look, map[string]int64{"red": 7})
	red.forwarder.Total.Up.Add(1)
	blue.forwarder.Total.Up.Add(2)
	expect("in a round", m.read, map[string]int64{"red": 1})
	expect("another look", m.look, map[string]int64{"blue": 2})
	expect("nothing more", m.look, map[string]int64{})
	testutil.Equal(t, len(m.busy), 0, "clusters are read in rounds")
}

// A tenant's bytes take the time that its bound has them take, by whatever
// protocols they pass, and come whole; another's take none.
func TestBandwidthIsBounded(t *testing.T) {
	const size, least = 500_000, 200 * time.Millisecond // at 1 MB a second, which any machine is faster than
	s := startSharers(t)
	red, blue := s.add("red", "bounds: {mbitPerSecond: 8}"), s.add("blue", "")
	red.hasAgent()
	blue.hasAgent()
	send := func(c *sharer, kind string) time.Duration {
		t.Helper()
		conn := c.reaches(kind, "a:1")
		had, began := c.got.Load(), time.Now()
		testutil.Must(conn.Write([]byte(strings.Repeat("x", size))))(t)
		conn.Close()
		s.eventually("all bytes", func() bool { return c.got.Load() == had+size })
		return time.Since(began)
	}
	for _, kind := range sharedClients {
		testutil.AtLeast(t, send(red, kind), least, "%s: %d bytes take", kind, size)
		send(blue, kind)
	}
	_, page := s.get(s.health, "/metrics")
	waited := grep(page, "tenant_bandwidth_wait_seconds_total{")
	testutil.Holds(t, strings.Contains(waited, `{direction="to_destination",tenant="blue"} 0`) &&
		!strings.Contains(waited, `{direction="to_destination",tenant="red"} 0`+"\n"), "who waited: %s", waited)

	// Another bound holds for what is open, too.
	conn := red.reaches("link", "a:1")
	had := red.got.Load()
	red.write("")
	testutil.Requires(t, red.cluster().spec().Bounds.MbitPerSecond == 0, "the bound was not lifted")
	before := red.cluster().limits.Paces.Up.Held()
	testutil.Must(conn.Write([]byte(strings.Repeat("x", size))))(t)
	conn.Close()
	s.eventually("all bytes", func() bool { return red.got.Load() == had+size })
	testutil.Equal(t, red.cluster().limits.Paces.Up.Held()-before, 0, "without a bound, it waited for")
}
