package uplink

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"konnectivity/internal/peers"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// pool keeps links to the server, as many as policy says, from the first request
// on. Its methods may be called from any goroutine, except for those that are Events
// of the set, which its loop calls in order.
type pool struct {
	opt       Options
	connector *connector
	health    *health
	spare     *spare          // for what showed the server to be old
	ends      *resume.Manager // of connections that move from link to link
	set       *peers.Set[netip.AddrPort, *pooled]
	pace      pace // of searches

	tasks *tasks // which the Server ends
	begun sync.Once
	lost  atomic.Int64 // links
}

func newPool(opt Options, c *connector, s *spare, ends *resume.Manager, t *tasks) *pool {
	p := &pool{opt: opt, connector: c, health: c.health, spare: s, ends: ends, tasks: t}
	p.set = peers.New(peers.Config[netip.AddrPort, *pooled]{
		Policy: policy, ConnectTimeout: opt.ConnectTimeout,
		Key:          netip.AddrPort.String,
		Resolve:      p.resolve,
		ResolveEvery: resolveEvery,
		Connect:      c.at,
		Rush:         p.rush,
		Events: peers.Events[netip.AddrPort, *pooled]{
			Joined: p.joined, Leaving: p.leaving, Lost: p.dropped, Resolved: p.resolved, Rushed: p.rushed,
			Reached: func(netip.AddrPort) { p.foundOld() },
			Failed:  func(f peers.Failure[netip.AddrPort]) { p.failed(f.Err) },
		},
	})
	return p
}

// links are those that there are now.
func (p *pool) links() links { return p.set.Members() }

// begin has the loop of the links run.
func (p *pool) begin() error {
	p.begun.Do(func() {
		p.tasks.start(func() {
			p.set.Run(p.tasks.ctx)
			p.set.Close()
		})
	})
	return p.tasks.err()
}

// keep has links made and kept from now on, without a request too.
func (p *pool) keep(ctx context.Context) error {
	if err := p.begin(); err != nil {
		return err
	}
	if p.opt.Mode != link.Off {
		p.set.Warm(ctx) // the first request can have it
	}
	p.set.Keep()
	return nil
}

// now waits for the attempt to make a link that is under way, or makes one.
func (p *pool) now(ctx context.Context) (*pooled, error) {
	if err := p.begin(); err != nil {
		return nil, err
	}
	return p.set.Now(ctx)
}

// offer takes in a link that was made beside the loop.
func (p *pool) offer(l *pooled) { p.set.Offer(l.addr, l) }

// rush makes a link to whichever address works first, or keeps the connection
// that showed the server to be old for one of those who wait.
func (p *pool) rush(ctx context.Context) (netip.AddrPort, *pooled, error) {
	if p.health.isOld() { // found out since the request began
		return netip.AddrPort{}, nil, &peers.Reached{Again: listenTime}
	}
	h, l, err := p.connector.whichever(ctx)
	switch {
	case err != nil:
		return netip.AddrPort{}, nil, err
	case l != nil:
		return l.addr, l, nil
	default:
		p.spare.keep(h)
		return h.addr, nil, &peers.Reached{Again: listenTime} // not right behind it
	}
}

// resolve looks the server's addresses up for links to be kept. No request waits for
// it.
func (p *pool) resolve(ctx context.Context) ([]netip.AddrPort, error) {
	ctx, cancel := context.WithTimeout(ctx, lookupTime)
	defer cancel()
	addrs, _, err := p.connector.servers.addresses(ctx, true)
	return addrs, err
}

// resolved leaves links to addresses that the server's name no longer has.
func (p *pool) resolved(addrs []netip.AddrPort, err error) {
	if err != nil {
		p.health.note(err)
		return
	}
	for _, m := range p.links() {
		m.Session.leaving.Store(!slices.Contains(addrs, m.Address))
	}
}

// joined notes that the server speaks the link. It runs after the session was
// taken in, since an attempt elsewhere may have found an old server in between.
func (p *pool) joined(*peers.Member[netip.AddrPort, *pooled]) { p.health.setOld(false) }

// foundOld notes that an old server answers, which counts only while there is
// no link. Like joined it belongs to the loop, so that neither overtakes the
// other.
func (p *pool) foundOld() { p.health.setOld(len(p.links()) == 0) }

// leaving sees to a link whose server goes, while a new one is made.
func (p *pool) leaving(m *peers.Member[netip.AddrPort, *pooled]) {
	p.tasks.start(func() { p.leave(m.Session) })
}

// dropped counts a link that has ended, if nobody asked it to.
func (p *pool) dropped(m *peers.Member[netip.AddrPort, *pooled]) {
	if !m.Leaving && !m.Session.replaced.Load() {
		p.lost.Add(1)
		p.opt.Log.WithField("server", m.Address).WithFields(link.LossFields(m.Session.Err())).Debug("lost a link")
	}
}

// failed notes why one address has no link, which matters to nobody while
// another has one.
func (p *pool) failed(err error) {
	if p.links().pick() == nil {
		p.health.note(err)
	} else {
		p.health.noteBehind(err)
	}
}

// rushed notes why nobody who waited has a link.
func (p *pool) rushed(err error) {
	var old *peers.Reached
	if errors.As(err, &old) {
		p.foundOld()
		return
	}
	p.health.note(err)
}
