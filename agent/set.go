package agent

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// connectTimeout bounds an attempt: TCP, TLS, and the server's answer. It is
// the bound that every handshake in the suite has.
const connectTimeout = 10 * time.Second

// set is the servers an agent is connected to. One loop (run) owns its state
// and decides; attempts, look-ups and watchers run beside it and report by
// channel. What others may read is copied under mu.
type set struct {
	opts      Options
	log       logrus.FieldLogger
	connector connector
	resolver  *resolver
	metrics   *metrics

	// Owned by the loop, and by drain and close after it.
	targets   []*target
	members   map[string]*member // by server id; leaving ones until a successor comes
	former    []*member          // leaving ones that have a successor
	heard     int                // the count that a server told last; 0: none
	wanted    int                // want as of the last look
	nextProbe time.Time
	searches  allowance
	resolving bool
	unlooked  bool // names failed to resolve, and that was logged

	results chan result
	found   chan lookup
	poke    chan struct{} // capacity 1: a session changed, look again
	helpers sync.WaitGroup

	mu    sync.Mutex
	seen  []*member // for status
	fault error     // for status: why the last attempt failed; nil: it worked
}

// member is a session of the set. Its fields belong to the loop.
type member struct {
	session
	target  *target
	since   time.Time
	count   int  // as last read from the session
	leaving bool // the server said that it is about to go
}

// result is how an attempt ended.
type result struct {
	target  *target
	session session
	err     error
}

// lookup is how a resolution ended.
type lookup struct {
	addresses []address
	err       error
}

func newSet(opts Options, c connector, m *metrics) *set {
	return &set{
		opts: opts, log: opts.Log, connector: c, resolver: newResolver(opts), metrics: m,
		members: map[string]*member{},
		results: make(chan result),
		found:   make(chan lookup),
		poke:    make(chan struct{}, 1),
	}
}

// run keeps the set connected until ctx ends. It returns once no attempt is
// under way any more; the sessions live on until drain or close.
func (s *set) run(ctx context.Context) {
	attempts, cancel := context.WithCancel(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	nextResolve := time.Now()
	s.nextProbe = nextResolve.Add(jitter(s.probeEvery()))
	for ctx.Err() == nil {
		now := time.Now()
		s.refresh(now)
		if !s.resolving && !now.Before(nextResolve) {
			s.lookUp(attempts)
			nextResolve = now.Add(s.resolveEvery())
		}
		dial, wake := s.plan(now)
		for _, t := range dial {
			s.attempt(attempts, t)
		}
		timer.Reset(time.Until(earlier(wake, nextResolve)))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.poke:
		case r := <-s.results:
			s.settle(r, time.Now())
		case l := <-s.found:
			s.resolved(l)
			nextResolve = time.Now().Add(s.resolveEvery())
		}
	}
	cancel()
	s.discard()
}

// resolveEvery is how long to wait between look-ups.
func (s *set) resolveEvery() time.Duration {
	if s.active() < s.want() || len(s.targets) == 0 {
		return s.opts.SyncInterval
	}
	for _, t := range s.targets {
		if t.listed && !s.covered(t) {
			return s.opts.SyncInterval // it may be a server that was replaced
		}
	}
	return max(s.opts.SyncInterval, min(resolveEvery, s.opts.SyncIntervalCap))
}

// attempt dials t in the background.
func (s *set) attempt(ctx context.Context, t *target) {
	t.dialing++
	s.helpers.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		session, err := s.connector.connect(bounded, t.address)
		s.results <- result{t, session, err}
	})
}

func (s *set) lookUp(ctx context.Context) {
	s.resolving = true
	s.helpers.Go(func() {
		addresses, err := s.resolver.resolve(ctx)
		s.found <- lookup{addresses, err}
	})
}

// watch wakes the loop when m ends or its server leaves.
func (s *set) watch(m *member) {
	s.helpers.Go(func() {
		select {
		case <-m.Draining():
			s.wake()
			<-m.Done()
		case <-m.Done():
		}
		s.wake()
		_ = m.Close() // frees what a session that ended by itself still holds
	})
}

func (s *set) wake() {
	select {
	case s.poke <- struct{}{}:
	default: // it will look anyway
	}
}

// settle takes in how an attempt ended.
func (s *set) settle(r result, now time.Time) {
	s.refresh(now) // a predecessor may just have ended
	t := r.target
	t.dialing--
	if r.err != nil {
		s.failed(t, r.err, now)
		return
	}
	id := r.session.ServerID()
	t.server = id
	s.hear(r.session.ServerCount())
	old := s.members[id]
	if old != nil && !old.leaving && !ended(old) {
		s.helpers.Go(func() { _ = r.session.CloseDuplicate() })
		if s.want() > s.active() {
			t.next = now.Add(t.duplicate())
		}
		s.log.WithFields(logrus.Fields{"server": id, "address": t.dial}).Debug("server is connected already")
		return
	}
	t.failing = false
	s.setFault(nil)
	s.join(&member{session: r.session, target: t, since: now, count: r.session.ServerCount()}, old)
	t.next = now
	s.hope()
}

// join adds a member, in the place of one that leaves.
func (s *set) join(m, old *member) {
	if old != nil {
		s.former = append(s.former, old)
	}
	s.members[m.ServerID()] = m
	// How often to probe depends on what the members are; the time until now
	// was chosen without this one.
	s.nextProbe = earlier(s.nextProbe, m.since.Add(jitter(s.probeEvery())))
	s.watch(m)
	s.publish()
	s.log.WithFields(logrus.Fields{
		"server": m.ServerID(), "address": m.target.dial, "protocol": m.Protocol(), "connected": s.active(), "servers": s.want(),
	}).Info("connected to server")
}

// failed takes in a failed attempt. Of all failures between two sessions the
// first is logged: behind a balancer they come between hits on known servers.
func (s *set) failed(t *target, err error, now time.Time) {
	t.next = now.Add(t.failure())
	s.metrics.connectFailed(err)
	s.setFault(fmt.Errorf("%s: %w", t.dial, err))
	log := s.log.WithError(err).WithField("address", t.dial)
	if s.covered(t) && s.active() >= s.want() {
		log.Debug("cannot look for more servers")
		return
	}
	if !t.failing {
		log.Warn("cannot connect to server; retrying")
	} else {
		log.Debug("cannot connect to server")
	}
	t.failing = true
}

// refresh looks at every session and takes in what changed.
func (s *set) refresh(now time.Time) {
	for _, m := range s.members {
		if ended(m) {
			s.lost(m, now)
		} else if !m.leaving && closed(m.Draining()) {
			m.leaving = true
			s.redial(m, now)
			s.log.WithField("server", m.ServerID()).Info("server is shutting down")
		} else if count := m.ServerCount(); count != m.count {
			m.count = count
			s.hear(count)
		}
	}
	s.former = slices.DeleteFunc(s.former, ended)
	if want := s.want(); want != s.wanted {
		if want > s.wanted {
			s.hope()
		}
		s.wanted = want
		s.metrics.knownServers.Set(float64(want))
	}
	s.publish()
}

// lost takes a session that ended out of the set.
func (s *set) lost(m *member, now time.Time) {
	delete(s.members, m.ServerID())
	if !m.leaving {
		s.redial(m, now)
	}
	s.metrics.sessionEnded(m)
	log := s.log.WithFields(logrus.Fields{"server": m.ServerID(), "address": m.target.dial, "connected": s.active(), "servers": s.want()})
	if m.leaving || m.Err() == nil {
		log.Info("server closed the connection")
	} else {
		log.WithError(m.Err()).Warn("connection to server lost")
	}
}

// redial lets m's address be dialed again soon.
func (s *set) redial(m *member, now time.Time) {
	for _, t := range s.targets {
		t.calm()
	}
	t := m.target
	if now.Sub(m.since) < shortLife {
		t.next = now.Add(t.failure())
		return
	}
	t.succeed()
	t.next = now.Add(jitter(redialSpread))
}

// hear takes in a count that a server told.
func (s *set) hear(count int) {
	if count > 0 {
		s.heard = count
	}
}

// hope lets the search be quick: something has just changed for the better.
func (s *set) hope() {
	for _, t := range s.targets {
		t.hope(s.want())
		if s.covered(t) {
			t.next = time.Time{}
		}
	}
}

// resolved takes in the addresses that the names have now. Those that are gone
// are not dialed any more, but a session to one of them stays.
func (s *set) resolved(l lookup) {
	s.resolving = false
	if l.err != nil && len(s.targets) == 0 {
		s.setFault(l.err)
	}
	if l.err != nil && !s.unlooked {
		s.log.WithError(l.err).Warn("cannot look up a server's name; retrying with the known addresses")
	}
	s.unlooked = l.err != nil
	if l.err == nil {
		for _, t := range s.targets {
			t.listed = false
		}
	}
	for _, a := range l.addresses {
		i := slices.IndexFunc(s.targets, func(t *target) bool { return t.dial == a.dial })
		if i >= 0 {
			s.targets[i].listed = true
			continue
		}
		t := &target{address: a, listed: true, pace: pace{base: s.opts.SyncInterval, limit: s.opts.SyncIntervalCap}}
		t.hope(s.want())
		s.targets = append(s.targets, t)
	}
	s.targets = slices.DeleteFunc(s.targets, func(t *target) bool { return !t.listed && t.dialing == 0 })
}

// discard waits for attempts that were cancelled and closes what they made.
func (s *set) discard() {
	attempts := s.count(func(t *target) int { return t.dialing })
	for ; attempts > 0; attempts-- {
		if r := <-s.results; r.err == nil {
			_ = r.session.Close()
		}
	}
	if s.resolving {
		<-s.found
	}
}

func (s *set) count(of func(*target) int) (n int) {
	for _, t := range s.targets {
		n += of(t)
	}
	return n
}
