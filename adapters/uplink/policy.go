package uplink

import (
	"context"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"konnectivity/internal/peers"
)

const (
	// firstPause and maxPause bound the wait before a link that could not be
	// made is tried again; it doubles and is jittered, so that the sidecars
	// of a cluster do not come back all at once.
	firstPause = 250 * time.Millisecond
	maxPause   = 15 * time.Second

	// probeEvery is how often a server without links is looked at, for
	// readiness and for whether it has been replaced by one with links.
	probeEvery = 30 * time.Second

	// shortLife is the age below which a link that ends counts as one more
	// failure, or a server that accepts and hangs up would be stormed.
	shortLife = 10 * time.Second

	// redialSpread spreads the first attempt behind a link that was cut. Who needs
	// a link and has none does not wait for it.
	redialSpread = 100 * time.Millisecond

	// forgivenLosses is how many short links to one address are redialed so soon,
	// plus one more every 5 s: the link that is left may be to a server that has
	// just lost the agent.
	forgivenLosses = 64

	// maxPerAddress is how many links go to one address that several servers
	// are behind: two, so that one is left when the other's server goes.
	maxPerAddress = 2
)

// policy keeps a link to each address, and two where several servers are behind
// the only one.
var policy = peers.Policy{
	Backoff:   peers.Backoff{Base: firstPause, Limit: maxPause, Growth: 2},
	ShortLife: shortLife, Spread: redialSpread, Losses: forgivenLosses, Wary: true, DrainSoon: true,
	MaxSearch: 1, ByAddress: true,
	Want: func(heard, addresses int) int {
		if addresses == 1 && heard > 1 {
			return maxPerAddress
		}
		return 1
	},
}

// newSet is the links that s keeps.
func (s *Server) newSet() *peers.Set[netip.AddrPort, *pooled] {
	return peers.New(peers.Config[netip.AddrPort, *pooled]{
		Policy: policy, ConnectTimeout: s.opt.ConnectTimeout,
		Key:          netip.AddrPort.String,
		Resolve:      s.resolve,
		ResolveEvery: resolveEvery,
		Connect:      s.keep,
		Rush:         s.rush,
		Events: peers.Events[netip.AddrPort, *pooled]{
			Joined: s.joined, Leaving: s.left, Lost: s.lost, Resolved: s.resolved, Rushed: s.rushed,
			Reached: func(netip.AddrPort) { s.foundOld() },
			Failed:  func(f peers.Failure[netip.AddrPort]) { s.noteBehind(f.Err) },
		},
	})
}

func (s *Server) resolve(ctx context.Context) ([]netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, s.opt.ConnectTimeout)
	defer cancel()
	addrs, _, err := s.servers.addresses(ctx, false)
	return addrs, err
}

// resolveEvery spreads look-ups, never before addresses are too old.
func resolveEvery(_ bool, err error) time.Duration {
	every := refreshEvery
	if err != nil {
		every = maxPause / 3
	}
	return every + rand.N(every/5)
}

// resolved leaves links to addresses that the server's name no longer has.
func (s *Server) resolved(addrs []netip.AddrPort, err error) {
	if err != nil {
		s.note(err)
		return
	}
	for _, m := range s.set.Members() {
		m.Session.leaving.Store(!slices.Contains(addrs, m.Address))
	}
}

// joined notes that the server speaks the link. It runs after the session was
// taken in, since an attempt elsewhere may have found an old server in between.
func (s *Server) joined(*peers.Member[netip.AddrPort, *pooled]) { s.health.setOld(false) }

// foundOld notes that an old server answers, which counts only while there is
// no link. Like joined it belongs to the loop, so that neither overtakes the
// other.
func (s *Server) foundOld() { s.health.setOld(len(s.set.Members()) == 0) }

// left sees to a link whose server goes, while a new one is made.
func (s *Server) left(m *peers.Member[netip.AddrPort, *pooled]) {
	s.start(func() { s.leave(m.Session) })
}

func (s *Server) lost(m *peers.Member[netip.AddrPort, *pooled]) {
	if !m.Leaving && !m.Session.replaced.Load() {
		s.stats.lost.Add(1)
		s.opt.Log.WithField("server", m.Address).WithError(m.Session.Err()).Debug("lost a link")
	}
}

// rushed notes why nobody who waited has a link.
func (s *Server) rushed(err error) {
	var old *peers.Reached
	if errors.As(err, &old) {
		s.foundOld()
		return
	}
	s.note(err)
}
