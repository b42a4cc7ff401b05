package reach

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/logging"
	"konnectivity/internal/peers"
	"konnectivity/internal/testutil"
	"konnectivity/server/registry"
	"konnectivity/tunnel/link"
)

// While a server is away, no second link is made to another one: it would stay for good.
func TestOneLinkToEachAddress(t *testing.T) {
	now := time.Now()
	p := peers.NewPlan(policy, now)
	p.List([]string{"there", "away"}, true)
	met := 0
	for range 20 {
		dials, _ := p.Next(now)
		for _, address := range dials {
			p.Done(address)
			if address == "away" {
				p.Failed(address, now)
			} else if met++; met == 1 {
				p.Met(address, "1", 0, false, now)
			}
		}
		now = now.Add(3 * time.Second)
	}
	testutil.Equal(t, met, 1, "how often it dialed the server that is there")
}

// found runs Servers that find these addresses, or not, and dial none, for a minute.
func found(t *testing.T, all []netip.AddrPort, err error) (s *Servers, lines int) {
	log, said := logtest.NewNullLogger()
	synctest.Test(t, func(t *testing.T) {
		var failed error
		s, failed = New(Options{
			Found: func(context.Context) ([]netip.AddrPort, error) { return all, err },
			TLS:   func(string, ...string) *tls.Config { return nil }, Known: registry.NewPeers(nil), Log: log,
		})
		testutil.NoError(t, failed)
		ctx := testutil.ContextFor(t, time.Minute)
		s.Run(ctx)
	})
	return s, len(said.AllEntries())
}

// Where there are no others, none is missing; where they are not known, some may be, which is
// logged once.
func TestWhatIsMissingWithoutAddresses(t *testing.T) {
	s, lines := found(t, nil, nil)
	testutil.Holds(t, s.Missing() == 0 && lines == 0, "alone, it misses %d others, and logs %d lines", s.Missing(), lines)
	if s, lines := found(t, nil, errors.New("no such host")); s.Missing() != 1 || lines != 1 {
		t.Errorf("in the dark, it misses %d others, and logs %d lines", s.Missing(), lines)
	}
}

// An API or a name server that does not answer keeps no others from being found.
func TestSlowSourceDelaysNoOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := testutil.Must(New(Options{
			Addresses: []string{"down.example:1", "up.example:1"},
			Found:     func(ctx context.Context) ([]netip.AddrPort, error) { <-ctx.Done(); return nil, ctx.Err() },
			TLS:       func(string, ...string) *tls.Config { return nil },
		}))(t)
		s.lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			if host == "down.example" {
				<-ctx.Done()
			}
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			return []netip.Addr{netip.MustParseAddr("192.0.2.1")}, nil
		}
		all, err := s.resolve(t.Context())
		testutil.Holds(t, len(all) == 1 && all[0].name == "up.example" && err != nil, "%v, %v", all, err)
	})
}

// Of more addresses than may be linked, the same ones are, in whatever order they come; that some
// are not is logged once.
func TestMoreAddressesThanAreLinked(t *testing.T) {
	log, said := logtest.NewNullLogger()
	s := testutil.Must(New(Options{TLS: func(string, ...string) *tls.Config { return nil }, Known: registry.NewPeers(nil), Log: log}))(t)
	var first []address
	for range 3 {
		var all []netip.AddrPort
		for _, i := range rand.Perm(maxAddresses + 1) {
			all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 1))
		}
		s.opts.Found = func(context.Context) ([]netip.AddrPort, error) { return all, nil }
		got := testutil.Must(s.resolve(t.Context()))(t)
		if first == nil {
			first = got
		}
		testutil.Holds(t, len(got) == maxAddresses && slices.Equal(got, first), "%v; before, it was %v", got, first)
	}
	lines := said.AllEntries()
	testutil.Holds(t, len(lines) == 1 && strings.Contains(lines[0].Message, "33 addresses"), "it logs %v", lines)
}

// A server whose address is gone, and that is still linked, stands for no other one.
func TestMissingBesideOneThatLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there := netip.MustParseAddrPort("127.0.0.1:0") // no listener can have it
		s := testutil.Must(New(Options{
			Found: func(context.Context) ([]netip.AddrPort, error) { return []netip.AddrPort{there}, nil },
			TLS:   func(string, ...string) *tls.Config { return nil }, Known: registry.NewPeers(nil), Log: logging.Silent(),
		}))(t)
		left := newItself()
		s.set.Offer(address{at: netip.MustParseAddrPort("127.0.0.2:0")}, left)
		ctx := testutil.ContextFor(t, time.Minute)
		time.AfterFunc(30*time.Second, func() {
			testutil.Equal(t, s.Missing(), 1, "others that are missing")
		})
		s.Run(ctx)
	})
}

// Servers that are away for a moment, as in a rollout, are not logged, and those that stay away by
// one line that counts them.
func TestServersThatAreAwayAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, said := logtest.NewNullLogger()
		s := testutil.Must(New(Options{TLS: func(string, ...string) *tls.Config { return nil }, Known: registry.NewPeers(nil), Log: log}))(t)
		var away []address
		for i := range 5 {
			away = append(away, address{at: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 1)})
		}
		fail := func(all []address, looks int) {
			for i := range looks * len(all) {
				a := all[i%len(all)]
				s.failed(peers.Failure[address]{Address: a, Err: errors.New("refused"), First: i < len(all)})
				time.Sleep(2 * time.Second / time.Duration(len(all)))
			}
		}
		s.resolved(away, nil)
		fail(away, 4)
		s.joined(peers.Member[address, peers.Session]{Address: away[0]})
		s.resolved(away[:4], nil) // a replaced one is gone
		testutil.Equal(t, len(said.AllEntries()), 0, "lines after 8 s")
		fail(away[1:4], 10)
		lines := said.AllEntries()
		testutil.Holds(t, len(lines) == 1 && lines[0].Data["unlinked"] == 3, "of 3 that stay away it logs %v", lines)
		fail(away[:1], 10)
		testutil.Equal(t, len(said.AllEntries()), 2, "lines once one is away later")
		testutil.Equal(t, len(s.Failing()), 4, "unlinked servers")
		// One that has failed only now is not counted, and is named if it stays away.
		said.Reset()
		s.resolved(nil, nil)
		fail(away[:1], 5)
		fail(away[1:2], 1)
		fail(away[:1], 1)
		fail(away[1:2], 5)
		lines = said.AllEntries()
		testutil.Holds(t, len(lines) == 2 && lines[0].Data["unlinked"] == 1 && lines[1].Data["unlinked"] == 2 &&
			lines[1].Data["server"] == away[1].at.String(), "of one that fails when another is logged it logs %v", lines)
	})
}

// Links that end again and again are logged, though none is away for long: one line for each cause
// in ten minutes, however many links do. Those of a server that drains, of a rollout, and of
// addresses that are gone, are not.
func TestLinksThatFlapAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, said := logtest.NewNullLogger()
		s := testutil.Must(New(Options{TLS: func(string, ...string) *tls.Config { return nil }, Known: registry.NewPeers(nil), Log: log}))(t)
		var all []address
		for i := range 5 {
			all = append(all, address{at: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 1)})
		}
		end := func(which []address, times int, why error) {
			for range times {
				time.Sleep(8 * time.Second)
				for _, a := range which {
					s.ended(a.at, why)
				}
			}
		}
		lines := func(what string, want ...int) {
			t.Helper()
			var got []int
			for _, e := range said.AllEntries() {
				got = append(got, e.Data["flapping"].(int))
			}
			testutil.EqualSlices(t, got, want, "%s: lines are about so many flapping links", what)
			said.Reset()
		}
		s.resolved(all, nil)
		for range flapEnds {
			s.ended(all[0].at, link.ErrDead)
		}
		lines("links to a server that drained")
		time.Sleep(2 * flapTime)
		end(all, flapEnds-1, link.ErrDead)
		lines("a rollout")
		s.resolved(all[3:], nil)
		s.resolved(all, nil)
		end(all[:3], 1, link.ErrDead)
		lines("addresses that were gone")
		time.Sleep(flapTime)
		for range 5 {
			end(all[:1], 1, link.ErrDead)
			time.Sleep(flapTime - 7*time.Second)
		}
		lines("too rarely")
		for range 5 {
			end(all[:1], 1, link.ErrDead)
			time.Sleep(flapTime - 8*time.Second)
		}
		lines("as rarely as counts", 1)
		end(all[:4], 20, io.ErrUnexpectedEOF)
		lines("another cause", 1)
		time.Sleep(flapQuiet)
		end(all[:4], 20, io.ErrUnexpectedEOF)
		lines("ten minutes later", 1)
		end(all, 20, io.ErrUnexpectedEOF)
		lines("at once")
	})
}

// Bounds and times are what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/operations.md"
	testutil.Says(t, page, "At most %v are linked", maxAddresses)
	testutil.Says(t, page, "after %v to %v s, with the number", int64(quietTime/time.Second), int64(2*quietTime/time.Second))
	testutil.Says(t, page, "A link that comes back each time within %v s", int64(quietTime/time.Second))
	testutil.Says(t, page, "each within %v minutes of the one before", int64(flapTime/time.Minute))
	testutil.Says(t, page, "Ends less than %v s apart count as one", int64(flapApart/time.Second))
	testutil.Says(t, page, "one line in %v minutes for each cause", int64(flapQuiet/time.Minute))
}
