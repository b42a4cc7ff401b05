package server

import (
	"context"
	"testing"
	"time"

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
		if _, err := c.agentLink(link.Hello{Role: link.RoleAgent, ID: "one"}); err != nil {
			t.Fatal(err)
		}
		c.has(1)
		ses, err := c.clientLink()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		red.cluster().hold.For(held)
		for range 3 { // what is being read when the hold begins still comes
			conn, err := ses.Dial(t.Context(), tunnel.NewFlow("tcp", "10.0.0.1:443"))
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
		}
		took := time.Since(began)
		t.Logf("%s: dials took %v", c.name, took)
		if c == red && took < held {
			t.Errorf("red's dials took %v after a hold of %v began", took, held)
		}
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
	if err != nil {
		t.Fatal(err)
	}
	red.has(1)
	s.eventually("a round trip that was held up", func() bool {
		red.cluster().hold.For(held) // again, lest it is over before anything is read
		return ses.RTT() > held/20
	})
}

// A server without tenants holds up nobody.
func TestNoHoldWithoutTenants(t *testing.T) {
	s := startServer(t)
	if s.own.held() != nil {
		t.Error("its links have a hold")
	}
}

// The meter sees what passes, and keepFair ends with its server.
func TestTheMeter(t *testing.T) {
	s := startSharers(t)
	red := s.add("red", "")
	s.eventually("red is served", func() bool { return red.cluster() != nil })
	m := newMeter(s.tenants)
	m.read()
	red.cluster().traffic.totals.Down.Add(3)
	red.cluster().traffic.totals.Up.Add(4)
	if carried, _ := m.read(); carried["red"] != 7 || len(carried) != 1 {
		t.Errorf("carried %v", carried)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.tenants.keepFair(ctx)
}
