package uplink

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"konnectivity/tunnel/link"
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

	// idleCheck is how often a link that is to be left is looked at for
	// streams.
	idleCheck = time.Second

	// maxPerAddress is how many links go to one address that several servers
	// are behind: two, so that one is left when the other's server goes.
	maxPerAddress = 2
)

// pooled is one link.
type pooled struct {
	*link.Session
	addr    netip.AddrPort
	since   time.Time
	leaving atomic.Bool // nothing new is to be put on it while there is another
}

func (l *pooled) alive() bool {
	select {
	case <-l.Done():
		return false
	default:
		return true
	}
}

func (l *pooled) isLeaving() bool {
	select {
	case <-l.Draining():
		return true
	default:
		return l.leaving.Load()
	}
}

// pick returns the link with the fewest streams that is not among tried; one
// that is being left only if there is no other; nil if there is none.
func (s *Server) pick(tried []*pooled) *pooled {
	s.mu.Lock()
	defer s.mu.Unlock()
	var best *pooled
	bestLoad := 0
	for _, l := range s.links {
		if !l.alive() || slices.Contains(tried, l) {
			continue
		}
		load := l.Streams()
		if l.isLeaving() {
			load += 1 << 30 // behind every other
		}
		if best == nil || load < bestLoad {
			best, bestLoad = l, load
		}
	}
	return best
}

// adopt makes a link of h, which it takes over, and keeps it until it ends.
func (s *Server) adopt(ctx context.Context, h handshaken) (*pooled, error) {
	ses, err := s.greet(ctx, h)
	if err != nil {
		return nil, err
	}
	l := &pooled{Session: ses, addr: h.addr, since: time.Now()}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		_ = ses.Close()
		return nil, errClosed
	}
	s.old = false
	s.links = append(s.links, l)
	s.wg.Go(func() { s.watch(l) })
	s.mu.Unlock()
	s.note(nil)
	s.rouse()
	return l, nil
}

// rouse makes Run look at the links.
func (s *Server) rouse() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// watch owns a link: it removes it when it ends and ends it when it is left.
func (s *Server) watch(l *pooled) {
	defer s.remove(l)
	select {
	case <-s.ctx.Done():
		return
	case <-l.Done():
		s.stats.lost.Add(1)
		s.opt.Log.WithField("server", l.addr).WithError(l.Err()).Debug("lost a link")
		return
	case <-l.Draining():
	}
	s.rouse() // a new one at once, while this one still serves
	tick := time.NewTicker(idleCheck)
	defer tick.Stop()
	for l.Streams() > 0 || s.only(l) {
		s.opt.Leave()
		select {
		case <-s.ctx.Done():
			return
		case <-l.Done():
			return
		case <-tick.C:
		}
	}
}

// only says whether l is the only link that is up.
func (s *Server) only(l *pooled) bool {
	return s.pick([]*pooled{l}) == nil
}

func (s *Server) remove(l *pooled) {
	s.mu.Lock()
	s.links = slices.DeleteFunc(s.links, func(o *pooled) bool { return o == l })
	s.mu.Unlock()
	_ = l.Close()
	s.rouse()
}

// place is what Run knows of one address of the server. It belongs to Run,
// but for results, which its connects send.
type place struct {
	busy  bool
	pause time.Duration // the last one
	next  time.Time     // not before
	made  time.Time     // the last link
	tried time.Time     // the last outcome
}

// placed is the outcome of connecting to a place.
type placed struct {
	addr netip.AddrPort
	old  bool // it works and speaks no link
	err  error
}

// Run keeps a link to each of the server's addresses until ctx ends, then
// closes the Server. An old server is looked at every 30 s. It must be called
// at most once.
func (s *Server) Run(ctx context.Context) {
	defer s.Close()
	defer context.AfterFunc(ctx, s.cancel)()
	if s.opt.Mode != link.Off {
		_, _ = s.join() // the first request can have it
	}
	places := make(map[netip.AddrPort]*place)
	results := make(chan placed)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-s.wake:
		case <-timer.C:
		case r := <-results:
			places[r.addr].settle(r)
		}
		timer.Reset(s.maintain(places, results))
	}
}

// settle decides when a place is tried again.
func (p *place) settle(r placed) {
	now := time.Now()
	p.busy, p.tried = false, now
	switch {
	case r.old:
		p.pause = probeEvery
	case r.err != nil, now.Sub(p.made) < shortLife:
		p.pause = min(max(2*p.pause, firstPause), maxPause)
	default:
		p.pause = 0
	}
	if r.err == nil {
		p.made = now
	}
	p.next = now.Add(jitter(p.pause))
}

// jitter spreads d over ±20 %.
func jitter(d time.Duration) time.Duration {
	return d*4/5 + rand.N(d*2/5+1)
}

// maintain starts what is missing and returns when to look again.
func (s *Server) maintain(places map[netip.AddrPort]*place, results chan<- placed) time.Duration {
	again := jitter(refreshEvery)
	if s.attempting() {
		return min(again, firstPause)
	}
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.ConnectTimeout)
	addrs, _, err := s.addresses(ctx, false)
	cancel()
	if err != nil {
		s.note(err)
		return min(again, jitter(maxPause/3))
	}
	s.markLeaving(addrs)
	for addr := range places {
		if !slices.Contains(addrs, addr) && !places[addr].busy {
			delete(places, addr)
		}
	}
	now := time.Now()
	for _, addr := range addrs {
		p := places[addr]
		if p == nil {
			p = &place{next: s.firstTry()}
			places[addr] = p
		}
		switch wait := p.wait(now, s.draining(addr)); {
		case p.busy || s.enough(addr, len(addrs)):
		case wait > 0:
			again = min(again, wait)
		default:
			p.busy = true
			s.start(func() { s.keep(addr, results) })
		}
	}
	return again
}

// wait is how long addr is to be left alone. One whose links were asked to go
// elsewhere has not failed: another server is there already, or is about to be.
func (p *place) wait(now time.Time, draining bool) time.Duration {
	wait := p.next.Sub(now)
	if draining {
		wait = min(wait, p.tried.Add(firstPause).Sub(now))
	}
	return wait
}

// draining says that there are links to addr, and that all of them are to be
// left.
func (s *Server) draining(addr netip.AddrPort) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	some := false
	for _, l := range s.links {
		if l.addr == addr && l.alive() {
			if !l.isLeaving() {
				return false
			}
			some = true
		}
	}
	return some
}

// firstTry is when a place is first connected to: later if an
// attempt has just found it old.
func (s *Server) firstTry() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.old {
		return time.Now().Add(listenTime) // not right behind it
	}
	return time.Now()
}

func (s *Server) attempting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempt != nil
}

// enough says whether addr, one of n, has the links it should have.
func (s *Server) enough(addr netip.AddrPort, n int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	have, want := 0, 1
	for _, l := range s.links {
		if l.addr != addr || !l.alive() || l.isLeaving() {
			continue
		}
		have++
		if n == 1 && l.ServerCount() > 1 {
			want = maxPerAddress
		}
	}
	return have >= want
}

// markLeaving leaves links to addresses that the server's name no longer has.
func (s *Server) markLeaving(addrs []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.links {
		l.leaving.Store(!slices.Contains(addrs, l.addr))
	}
}

// keep connects to addr once and reports.
func (s *Server) keep(addr netip.AddrPort, results chan<- placed) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.ConnectTimeout)
	defer cancel()
	out := placed{addr: addr}
	h, err := s.connectTo(ctx, addr)
	switch {
	case err != nil:
	case h.link():
		_, err = s.adopt(ctx, h)
	default:
		if err = h.listen(); err == nil {
			out.old = true
			s.foundOld()
		}
		_ = h.NetConn().Close()
	}
	if err != nil {
		out.err = err
		s.noteBehind(err)
	}
	select {
	case results <- out:
	case <-s.ctx.Done():
	}
}

// foundOld notes that an old server answers.
func (s *Server) foundOld() {
	s.note(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old = len(s.links) == 0
}

// noteBehind notes a failure at one address, which matters to nobody while
// another has a link.
func (s *Server) noteBehind(err error) {
	if s.pick(nil) == nil {
		s.note(err)
		return
	}
	s.stats.failures.Add(1)
	s.opt.Log.WithError(err).Debug("no link to one of the server's addresses; retrying")
}
