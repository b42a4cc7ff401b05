package uplink

import (
	"errors"
	"net/netip"
	"slices"
	"testing"
	"time"

	"konnectivity/adapters/internal/fakeserver"
	"konnectivity/internal/peers"
)

// The only address of several servers gets two links, whatever one of the
// servers knows and however many links go to addresses that are gone.
func TestTwoLinksToTheOnlyAddress(t *testing.T) {
	now := time.Now()
	p := peers.NewPlan(policy, now)
	p.List([]string{"gone", "only"}, true)
	p.Next(now)
	for _, at := range []string{"gone", "only"} {
		p.Done(at)
		p.Met(at, at, 3, false, now)
	}
	p.List([]string{"only"}, true)
	if dial, _ := p.Next(now.Add(time.Second)); !slices.Equal(dial, []string{"only"}) {
		t.Fatalf("dials %q beside a link to an address that is gone", dial)
	}
	p.Done("only")
	p.Met("only", "modest", 1, false, now)
	if got := p.Want(); got != maxPerAddress {
		t.Errorf("wants %d when one of the servers knows of no other", got)
	}
}

// A server with links beside one without: once there is a link, it is what
// requests go by, though the old one was found after the link was made.
func TestALinkOutweighsAnOldServer(t *testing.T) {
	p := fakeserver.NewPKI(t)
	linked, old := fakeserver.New(p).Start(t), fakeserver.New(p).Old().Start(t)
	s := client(t, p, at("192.0.2.1", linked.Addr(), "192.0.2.2", old.Addr()), nil)
	must(t, s.pool.begin())
	l, err := s.connector.at(t.Context(), netip.MustParseAddrPort("192.0.2.1:8090"))
	must(t, err)
	var reached *peers.Reached
	if _, err := s.connector.at(t.Context(), netip.MustParseAddrPort("192.0.2.2:8090")); !errors.As(err, &reached) {
		t.Fatal(err)
	}
	if s.health.isOld() {
		t.Error("an attempt decides what the server is, and not the loop")
	}
	s.pool.foundOld() // as the loop does when it hears of that first
	s.pool.offer(l)
	eventually(t, "the link to count", func() bool { return !s.health.isOld() })
}

// A server that forgets the link is known to be old without a request.
func TestServerForgetsTheLink(t *testing.T) {
	p := fakeserver.NewPKI(t)
	server := fakeserver.New(p).Start(t)
	s := client(t, p, at("192.0.2.1", server.Addr()), nil)
	run(t, s)
	eventually(t, "a link", func() bool { return s.Ready() == nil })
	server.Stop()
	fakeserver.New(p).Old().StartAt(t, server.Addr())
	eventually(t, "the server known to be old", s.health.isOld)
}

// Who began to ask before the server was found to be old, and is heard after
// that, costs no look at the server.
func TestAnOldServerIsFoundOnce(t *testing.T) {
	p := fakeserver.NewPKI(t)
	server := fakeserver.New(p).Old().Start(t)
	s := client(t, p, at("192.0.2.1", server.Addr()), nil)
	s.pool.foundOld()
	var old *peers.Reached
	if _, _, err := s.pool.rush(t.Context()); !errors.As(err, &old) || server.Handshakes.Load() > 0 {
		t.Errorf("%v, %d handshakes", err, server.Handshakes.Load())
	}
}
