package peers

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
)

const (
	// lookUpTime bounds a look-up. Go's resolver asks all name servers within 5 s
	// (internal/nameserver), and once more.
	lookUpTime = 12 * time.Second
	// maxLookUpTime bounds one while no session is to stay: the resolver takes 10 s for each search
	// domain without an answer, and resolv.conf(5) used to allow six. Look-ups that fail get there
	// by doubling, since one under way does not notice the search domains of a new resolv.conf.
	maxLookUpTime = 75 * time.Second
)

// Session is a connection to one server. Its methods may be called from any
// goroutine.
type Session interface {
	Key() string      // unique in the set, or the session is one too many
	ServerCount() int // as the server last said; 0 where it did not
	Streams() int     // connections on it

	Done() <-chan struct{} // closed when it has ended
	// Drains happens when the server says that it is about to go, and not with the session.
	Drains() *tunnel.Event
	Close() error // ends it and returns when it is over; again is harmless
}

// Config is what a Set works with. Its functions are called on goroutines of the
// Set; those of Events by the loop, one at a time, so they must not block.
type Config[A any, S Session] struct {
	Policy Policy
	Events Events[A, S]

	Key func(A) string // tells addresses apart
	// Resolve returns the present addresses, and an error if some may be missing. ctx bounds it.
	Resolve func(ctx context.Context) ([]A, error)
	// ResolveEvery is the pause between look-ups; complete says that nothing is
	// missing.
	ResolveEvery func(complete bool, err error) time.Duration
	// Connect makes a session or fails, as soon as ctx ends at the latest. It
	// leaves nothing behind when it fails.
	Connect func(ctx context.Context, to A) (S, error)
	// ConnectTimeout bounds Connect, Rush and Replace.
	ConnectTimeout time.Duration
	// Rush makes a session with the address that works first, for callers of Now.
	Rush func(ctx context.Context) (A, S, error)
	// Silent reports that a session's server does not tell by itself when the count
	// changes. nil: every server does.
	Silent func(S) bool

	// Serves reports whether a session's server says, or is taken, to have agents.
	// Server is that server's id, and Replace is Connect, for a Search. All are nil
	// where servers do not tell.
	Serves  func(S) bool
	Server  func(S) (id string)
	Replace func(ctx context.Context, to A) (S, error)
	// Retire ends a session that is Leaving or Replaced once it is of no more use, or
	// returns when ctx ends. nil: it ends by itself.
	Retire func(ctx context.Context, session S)
}

// Events are told what happens. nil ones are not.
type Events[A any, S Session] struct {
	Joined    func(m Member[A, S])
	Duplicate func(to A, session S) // which is to be closed, now or soon
	Failed    func(f Failure[A])
	Rushed    func(err error) // a Rush failed, and callers wait
	Leaving   func(m Member[A, S])
	Ended     func(m Member[A, S], was State) // in order, lost, or closed here
	Resolved  func(known []A, err error)      // those that are dialed, in no order
	Changed   func(connected, wanted int)     // after each look
}

// Failure is a failed attempt.
type Failure[A any] struct {
	Address  A
	Err      error
	First    bool // since a session was made there
	Needless bool // no server is missing
}

// Set stays connected. One loop, Run, owns its state and decides by its Plan;
// attempts, look-ups and watchers run beside it and report by mail. The methods
// but Run may be called from any goroutine.
type Set[A any, S Session] struct {
	cfg      Config[A, S]
	mail     mailbox
	wanted   chan struct{} // capacity 1: a Search
	helpers  sync.WaitGroup
	snapshot atomic.Pointer[[]Member[A, S]]
	news     atomic.Int64 // tunnel.Moment when a session was made or lost; 0: never
	busy     atomic.Bool  // it keeps connected, or attempts or look-ups are under way

	// Owned by the loop.
	ctx       context.Context    // of all work; it ends with Run
	way       context.Context    // of attempts; it ends with ctx, or when the ways change
	leave     context.CancelFunc // ends way
	plan      *Plan
	keep      bool // stay connected, and not only serve callers of Now
	targets   map[string]*target[A]
	members   []*member[A, S] // in the order they joined
	changed   bool            // the snapshot is not what members are
	pending   int             // attempts and look-ups under way
	resolving bool
	lookUpFor time.Duration // bounds the next look-up
	lookAgain time.Time
	rushing   bool
	nextRush  time.Time          // no Rush before
	waiting   []chan<- answer[S] // for a Rush
	searches  searchPace
}

// New returns a Set that does nothing yet.
func New[A any, S Session](cfg Config[A, S]) *Set[A, S] {
	s := &Set[A, S]{
		cfg: cfg, mail: mailbox{ready: make(chan struct{}, 1)}, wanted: make(chan struct{}, 1), targets: map[string]*target[A]{},
		searches: searchPace{initial: cfg.Policy.Backoff}, lookUpFor: lookUpTime,
	}
	s.snapshot.Store(new([]Member[A, S]))
	return s
}

// Keep makes Run stay connected from now on, and not only serve callers of Now.
func (s *Set[A, S]) Keep() {
	s.busy.Store(true)
	s.mail.post(func() { s.keep = true })
}

// Rest undoes Keep. Sessions live on, and attempts that are under way come to their end.
func (s *Set[A, S]) Rest() { s.mail.post(func() { s.keep = false }) }

// Busy reports whether sessions may yet come of Keep. Those that have come are Members by the
// time that it is false.
func (s *Set[A, S]) Busy() bool { return s.busy.Load() }

// Retry tries what failed again at once, not after the pause that it has
// earned. Its caller knows that something has changed, such as our certificate.
func (s *Set[A, S]) Retry() { s.mail.post(func() { s.plan.Retry() }) }

// Run is the loop. It returns once ctx has ended and no attempt is under way any
// more; the sessions live on until Close. It may be called once.
func (s *Set[A, S]) Run(ctx context.Context) {
	var cancel context.CancelFunc
	s.ctx, cancel = context.WithCancel(ctx)
	defer cancel()
	s.way, s.leave = context.WithCancel(s.ctx)
	s.plan = NewPlan(s.cfg.Policy, time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		s.read(s.mail.take())
		now := time.Now()
		s.refresh(now)
		timer.Reset(time.Until(s.step(now)))
		s.busy.Store(s.keep || s.pending > 0)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.mail.ready:
		case <-s.wanted:
			s.search(time.Now())
		}
	}
	s.release(answer[S]{err: errClosed})
	for { // attempts are cancelled; a session that one made all the same is taken in
		s.read(s.mail.take())
		if s.pending == 0 {
			break
		}
		<-s.mail.ready
	}
	s.read(s.mail.close())
}

// read does what others have asked for.
func (s *Set[A, S]) read(messages []func()) {
	for _, message := range messages {
		s.refresh(time.Now()) // a predecessor may just have ended
		message()
	}
}

// background does work beside the loop, and then, in the loop, what work returns.
func (s *Set[A, S]) background(work func() (then func())) {
	s.pending++
	s.helpers.Go(func() {
		then := work()
		s.mail.post(func() { s.pending--; then() })
	})
}

// step starts due look-ups and attempts, and returns when to look again.
func (s *Set[A, S]) step(now time.Time) (wake time.Time) {
	if !s.keep || s.rushing { // a Rush tells something about all addresses
		return now.Add(s.cfg.Policy.Limit)
	}
	if !s.resolving && !now.Before(s.lookAgain) {
		s.lookUp()
	}
	if one := s.plan.Surplus(now); one != nil {
		s.replaced(s.members[slices.IndexFunc(s.members, func(m *member[A, S]) bool { return m.peer == one })])
	}
	dial, wake := s.plan.Next(now)
	for _, key := range dial {
		s.attempt(key)
	}
	if s.resolving { // its end wakes the loop
		return wake
	}
	return earlier(wake, s.lookAgain)
}

// attempt connects because the Plan says so.
func (s *Set[A, S]) attempt(key string) {
	way, target := s.way, s.targets[key]
	target.try(key)
	to := target.address
	s.background(func() func() {
		ctx, cancel := context.WithTimeout(way, s.cfg.ConnectTimeout)
		defer cancel()
		session, err := s.cfg.Connect(ctx, to)
		return func() { s.attempted(to, session, err, way) }
	})
}

// attempted takes in how an attempt went.
func (s *Set[A, S]) attempted(to A, session S, err error, way context.Context) {
	key := s.cfg.Key(to)
	s.plan.Done(key)
	switch {
	case err == nil:
		s.joinWanted(to, session)
	case way.Err() == nil: // else nothing is known of the present one
		first, needless := s.plan.Failed(key, time.Now())
		if s.cfg.Events.Failed != nil {
			s.cfg.Events.Failed(Failure[A]{to, err, first, needless})
		}
	}
}

// lookUp resolves the names.
func (s *Set[A, S]) lookUp() {
	s.resolving = true
	ctx, cancel := context.WithTimeout(s.ctx, s.lookUpFor)
	s.background(func() func() {
		defer cancel()
		addresses, err := s.cfg.Resolve(ctx)
		return func() { s.resolved(addresses, err) }
	})
}

// resolved takes in the present addresses.
func (s *Set[A, S]) resolved(addresses []A, err error) {
	s.resolving = false
	if s.ctx.Err() != nil {
		return
	}
	was := s.lookUpFor
	var keys []string
	for _, a := range addresses {
		keys = append(keys, s.know(a))
	}
	if s.lookUpFor = lookUpTime; err != nil && s.plan.Active() == 0 {
		s.lookUpFor = min(2*was, maxLookUpTime)
	}
	s.plan.List(keys, err == nil)
	var known []A
	for key, target := range s.targets {
		switch t := s.plan.find(key); {
		case t == nil:
			delete(s.targets, key)
		case t.listed:
			known = append(known, target.address)
		}
	}
	for _, m := range s.members {
		if gone := s.cfg.Policy.ByAddress && !m.peer.at.listed; gone != m.unlisted {
			m.unlisted, s.changed = gone, true
		}
	}
	if s.cfg.Events.Resolved != nil {
		s.cfg.Events.Resolved(known, err)
	}
	s.lookAgain = time.Now().Add(s.cfg.ResolveEvery(s.plan.Complete(), err))
}

// know has an address among the targets, and returns its key.
func (s *Set[A, S]) know(a A) (key string) {
	key = s.cfg.Key(a)
	if known := s.targets[key]; known != nil {
		known.address = a
	} else {
		s.targets[key] = &target[A]{address: a}
	}
	return key
}

// joinWanted is join for a session that the loop has asked for. If there are
// two, callers of Now get the session that stays.
func (s *Set[A, S]) joinWanted(address A, session S) {
	if s.plan.Needless(s.cfg.Key(address)) {
		if m := s.usable(); m != nil {
			s.helpers.Go(func() { _ = session.Close() })
			s.release(answer[S]{session: m.Session})
			return
		}
		s.refresh(time.Now()) // the other one has just ended
	}
	s.join(address, session)
}

// join takes a session in, unless its server is connected already.
func (s *Set[A, S]) join(address A, session S) {
	now, key, count := time.Now(), s.cfg.Key(address), session.ServerCount()
	peer := s.plan.Met(key, session.Key(), count, s.cfg.Silent != nil && s.cfg.Silent(session), now)
	if peer == nil {
		if s.cfg.Events.Duplicate != nil {
			s.cfg.Events.Duplicate(address, session)
		}
		return
	}
	s.know(address)
	m := &member[A, S]{Member: Member[A, S]{Session: session, Address: address, Since: now, serves: s.cfg.Serves}, peer: peer, count: count}
	s.members, s.changed = append(s.members, m), true
	s.news.Store(int64(tunnel.At(now)))
	s.watch(session)
	s.publish()
	if s.cfg.Events.Joined != nil {
		s.cfg.Events.Joined(m.Member)
	}
	s.release(answer[S]{session: session})
}

// watch wakes the loop when a session ends or its server leaves.
func (s *Set[A, S]) watch(session S) {
	s.helpers.Go(func() {
		select {
		case <-session.Drains().Done():
			s.mail.wake()
			<-session.Done()
		case <-session.Done():
		}
		s.mail.wake()
		_ = session.Close() // frees what a session that ended by itself still holds
	})
}

// replaced has others take the place of a session.
func (s *Set[A, S]) replaced(m *member[A, S]) {
	m.replaced, m.state, s.changed = true, Replaced, true
	s.plan.Replaced(m.peer)
	s.publish() // before the session's connections look for another
	s.retire(m)
}

// retire begins to end a session that is Leaving or Replaced.
func (s *Set[A, S]) retire(m *member[A, S]) {
	if s.cfg.Retire != nil {
		s.helpers.Go(func() { s.cfg.Retire(s.ctx, m.Session) })
	}
}

// refresh looks at every session and takes in what changed.
func (s *Set[A, S]) refresh(now time.Time) {
	n := len(s.members)
	s.members = slices.DeleteFunc(s.members, func(m *member[A, S]) bool { return s.look(m, now) })
	if len(s.members) < n {
		s.changed = true
		s.news.Store(int64(tunnel.At(now))) // before the others see that it is gone
	}
	s.publish()
	if s.cfg.Events.Changed != nil {
		s.cfg.Events.Changed(s.plan.Connected(), s.plan.Want())
	}
}

// look takes in what changed about one session and reports whether it has ended.
func (s *Set[A, S]) look(m *member[A, S], now time.Time) (ended bool) {
	was := m.state
	m.state = m.State()
	switch {
	case m.state == Ended:
		if succeeded := s.plan.Lost(m.peer, now); !succeeded && s.cfg.Events.Ended != nil {
			s.cfg.Events.Ended(m.Member, was)
		}
		return true
	case m.state == Leaving && was != Leaving:
		s.plan.Leaving(m.peer, now)
		s.retire(m)
		if s.cfg.Events.Leaving != nil {
			s.cfg.Events.Leaving(m.Member)
		}
	}
	if count := m.Session.ServerCount(); count != m.count {
		m.count = count
		s.plan.Heard(m.peer, count)
	}
	return false
}

// publish shows the members to others, where they changed.
func (s *Set[A, S]) publish() {
	if !s.changed {
		return
	}
	all := make([]Member[A, S], len(s.members))
	for i, m := range s.members {
		all[i] = m.Member
	}
	s.snapshot.Store(&all)
	s.changed = false
}

// Members are the sessions, some of which may have ended, in the order they
// joined. The slice is not to be changed.
func (s *Set[A, S]) Members() []Member[A, S] { return *s.snapshot.Load() }

// Active is the number of servers connected that mean to stay; for Events only.
func (s *Set[A, S]) Active() int { return s.plan.Active() }

// Want is the number of servers to be connected to; for Events only.
func (s *Set[A, S]) Want() int { return s.plan.Want() }

// Close ends every session, all at once, and joins all helpers. It is called once Run has
// returned, or instead of it.
func (s *Set[A, S]) Close() {
	for _, m := range s.Members() {
		s.helpers.Go(func() { _ = m.Session.Close() })
	}
	s.helpers.Wait()
	s.snapshot.Store(new([]Member[A, S]))
}
