package peers

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
)

// Session is a connection to one server. Its methods may be called from any
// goroutine.
type Session interface {
	ServerID() string // unique in the set, or the session is one too many
	ServerCount() int // as the server last said; 0 where it did not

	Done() <-chan struct{} // closed when it has ended
	// Draining is closed when the server said that it is about to go; nil
	// where the protocol cannot say it.
	Draining() <-chan struct{}
	Close() error // ends it and returns when it is over; again is harmless
}

// Reached is the error of a server that answers and cannot be connected to: it
// is well, and is to be asked again after a time.
type Reached struct{ Again time.Duration }

func (*Reached) Error() string { return "the server answers, and there is nothing to keep" }

// errClosed is the answer of a Set that runs no more.
var errClosed = errors.New("shutting down")

// Config is what a Set does its work with. All functions are called on
// goroutines of the Set's own; those of Events by its loop, one at a time, so
// they must not block.
type Config[A any, S Session] struct {
	Policy Policy
	Events Events[A, S]

	Key func(A) string // tells addresses apart
	// Resolve returns the addresses that there are now, and an error if they
	// may not be all; ctx bounds it, and it must bound itself.
	Resolve func(ctx context.Context) ([]A, error)
	// ResolveEvery is how long to wait between look-ups; complete says that
	// nothing is missing.
	ResolveEvery func(complete bool, err error) time.Duration
	// Connect makes a session or fails, as soon as ctx ends at the latest. It
	// leaves nothing behind when it fails.
	Connect func(ctx context.Context, to A) (S, error)
	// ConnectTimeout bounds it.
	ConnectTimeout time.Duration
	// Rush makes a session with whichever address works first, for those who
	// asked by Now.
	Rush func(ctx context.Context) (A, S, error)
	// Silent says of a session that its server does not tell by itself when
	// the count changes.
	Silent func(S) bool
}

// Events are told what happens. nil ones are not.
type Events[A any, S Session] struct {
	Joined    func(m *Member[A, S])
	Duplicate func(to A, session S) // which is to be closed, now or soon
	Failed    func(f Failure[A])
	Reached   func(to A)      // where there is nothing to keep
	Rushed    func(err error) // a Rush failed, or found what it cannot keep
	Leaving   func(m *Member[A, S])
	Lost      func(m *Member[A, S])
	Resolved  func(known []A, err error)  // those that are dialed, in no order
	Changed   func(connected, wanted int) // after each look
}

// Failure is a failed attempt.
type Failure[A any] struct {
	Address  A
	Err      error
	First    bool // since a session was made there
	Needless bool // it was for a server that nobody misses
}

// Member is a session of a Set.
type Member[A any, S Session] struct {
	Session S
	Address A
	Since   time.Time
	Leaving bool // the server said that it is about to go; for Events only

	peer  *Peer
	count int // as last read from the session
}

// Set stays connected. One loop, Run, owns its state and decides by its Plan;
// attempts, look-ups and watchers run beside it and report by channel. What
// others may read is published whole. The methods but Run may be called from any
// goroutine.
type Set[A any, S Session] struct {
	cfg    Config[A, S]
	keep   atomic.Bool // stay connected, and not only to who asks
	again  atomic.Bool // Retry was called
	seen   atomic.Pointer[[]*Member[A, S]]
	over   chan struct{} // Run has ended
	poke   chan struct{} // capacity 1: a session changed, look again
	helper sync.WaitGroup

	results chan result[A, S]
	found   chan lookup[A]
	asked   chan chan<- answer[S]

	// Owned by the loop.
	plan      *Plan
	addresses map[string]A
	members   []*Member[A, S] // in the order they joined
	attempts  int             // under way
	resolving bool
	lookAgain time.Time
	lookErr   error
	waiting   []chan<- answer[S] // for a Rush
	rushing   bool               // one is under way
}

// result is how an attempt, a Rush or an Offer ended.
type result[A any, S Session] struct {
	address A
	session S
	err     error
	kind    kind
}

type kind int

const (
	planned kind = iota // the Plan asked for it
	rushed              // somebody did
	offered             // it comes from outside
)

// lookup is how a resolution ended.
type lookup[A any] struct {
	addresses []A
	err       error
}

type answer[S Session] struct {
	session S
	err     error
}

// New returns a Set that does nothing yet.
func New[A any, S Session](cfg Config[A, S]) *Set[A, S] {
	s := &Set[A, S]{
		cfg: cfg, addresses: map[string]A{},
		over: make(chan struct{}), poke: make(chan struct{}, 1),
		results: make(chan result[A, S]), found: make(chan lookup[A]), asked: make(chan chan<- answer[S]),
	}
	s.seen.Store(new([]*Member[A, S]))
	return s
}

// Keep makes Run stay connected from now on, and not only serve those who ask.
func (s *Set[A, S]) Keep() {
	s.keep.Store(true)
	s.wake()
}

// Retry tries what failed again at once, not after the pause that it has
// earned. Its caller knows that something has changed, such as our certificate.
func (s *Set[A, S]) Retry() {
	s.again.Store(true)
	s.wake()
}

// Run is the loop. It returns once ctx has ended and no attempt is under way any
// more; the sessions live on until Close. It may be called once.
func (s *Set[A, S]) Run(ctx context.Context) {
	defer close(s.over)
	s.plan = NewPlan(s.cfg.Policy, time.Now())
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		now := time.Now()
		s.refresh(now)
		if s.again.Swap(false) {
			s.plan.Retry()
		}
		timer.Reset(time.Until(s.step(working, now)))
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-s.poke:
		case r := <-s.results:
			s.settle(r, time.Now())
		case l := <-s.found:
			s.resolved(l)
		case reply := <-s.asked:
			s.rush(working, reply)
		}
	}
	cancel()
	s.collect()
}

// step starts what is due and says when to look again.
func (s *Set[A, S]) step(ctx context.Context, now time.Time) (wake time.Time) {
	idle := now.Add(s.cfg.Policy.Limit)
	if !s.keep.Load() || s.rushing { // which tells something about all addresses
		return idle
	}
	if !s.resolving && !now.Before(s.lookAgain) {
		s.lookUp(ctx)
		s.lookAgain = now.Add(s.cfg.ResolveEvery(s.plan.Complete(), s.lookErr))
	}
	dial, wake := s.plan.Next(now)
	for _, key := range dial {
		s.attempt(ctx, s.addresses[key])
	}
	if s.resolving { // its end wakes the loop; lookAgain may be over before
		return wake
	}
	return earlier(wake, s.lookAgain)
}

// attempt connects in the background.
func (s *Set[A, S]) attempt(ctx context.Context, to A) {
	s.attempts++
	s.helper.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, s.cfg.ConnectTimeout)
		defer cancel()
		session, err := s.cfg.Connect(bounded, to)
		s.results <- result[A, S]{to, session, err, planned}
	})
}

func (s *Set[A, S]) lookUp(ctx context.Context) {
	s.resolving = true
	s.helper.Go(func() {
		addresses, err := s.cfg.Resolve(ctx)
		s.found <- lookup[A]{addresses, err}
	})
}

// resolved takes in the addresses that there are now.
func (s *Set[A, S]) resolved(l lookup[A]) {
	s.resolving, s.lookErr = false, l.err
	var keys []string
	for _, a := range l.addresses {
		key := s.cfg.Key(a)
		keys, s.addresses[key] = append(keys, key), a
	}
	s.plan.List(keys, l.err == nil)
	var known []A
	for key, a := range s.addresses {
		switch t := s.plan.find(key); {
		case t == nil:
			delete(s.addresses, key)
		case t.listed:
			known = append(known, a)
		}
	}
	tell(s.cfg.Events.Resolved, known, l.err)
	s.lookAgain = time.Now().Add(s.cfg.ResolveEvery(s.plan.Complete(), l.err))
}

// settle takes in how an attempt ended.
func (s *Set[A, S]) settle(r result[A, S], now time.Time) {
	s.refresh(now) // a predecessor may just have ended
	key := s.cfg.Key(r.address)
	s.ended(r.kind)
	if r.kind == planned {
		s.plan.Done(key)
	}
	var reached *Reached
	switch {
	case r.err == nil:
		s.join(key, r, now)
	case r.kind == rushed:
		if errors.As(r.err, &reached) {
			s.plan.Hold(now.Add(reached.Again))
		}
		if len(s.waiting) > 0 && s.cfg.Events.Rushed != nil { // else a session came by another way
			s.cfg.Events.Rushed(r.err)
		}
		s.release(answer[S]{err: r.err})
	case errors.As(r.err, &reached):
		s.plan.Reached(key, reached.Again, now)
		if s.cfg.Events.Reached != nil {
			s.cfg.Events.Reached(r.address)
		}
	default:
		first, needless := s.plan.Failed(key, now)
		if s.cfg.Events.Failed != nil {
			s.cfg.Events.Failed(Failure[A]{r.address, r.err, first, needless})
		}
	}
}

// ended notes that what was under way is over; an Offer never was.
func (s *Set[A, S]) ended(k kind) {
	switch k {
	case planned:
		s.attempts--
	case rushed:
		s.rushing = false
	}
}

// join takes a session in, unless its server is connected already.
func (s *Set[A, S]) join(key string, r result[A, S], now time.Time) {
	if r.kind != offered && s.plan.Needless(key) {
		if m := s.usable(); m != nil {
			s.helper.Go(func() { _ = r.session.Close() })
			s.release(answer[S]{session: m.Session})
			return
		}
		s.refresh(now) // the one that was there first has just ended
	}
	id, count := r.session.ServerID(), r.session.ServerCount()
	peer := s.plan.Met(key, id, count, s.cfg.Silent != nil && s.cfg.Silent(r.session), now)
	if peer == nil {
		tell(s.cfg.Events.Duplicate, r.address, r.session)
		return
	}
	s.addresses[key] = r.address
	m := &Member[A, S]{Session: r.session, Address: r.address, Since: now, peer: peer, count: count}
	s.members = append(s.members, m)
	s.watch(r.session)
	s.publish()
	if s.cfg.Events.Joined != nil {
		s.cfg.Events.Joined(m)
	}
	s.release(answer[S]{session: r.session})
}

// watch wakes the loop when a session ends or its server leaves.
func (s *Set[A, S]) watch(session S) {
	s.helper.Go(func() {
		select {
		case <-session.Draining():
			s.wake()
			<-session.Done()
		case <-session.Done():
		}
		s.wake()
		_ = session.Close() // frees what a session that ended by itself still holds
	})
}

func (s *Set[A, S]) wake() {
	select {
	case s.poke <- struct{}{}:
	default: // it will look anyway
	}
}

// refresh looks at every session and takes in what changed.
func (s *Set[A, S]) refresh(now time.Time) {
	s.members = slices.DeleteFunc(s.members, func(m *Member[A, S]) bool { return s.check(m, now) })
	s.publish()
	if s.cfg.Events.Changed != nil {
		s.cfg.Events.Changed(s.plan.Connected(), s.plan.Want())
	}
}

// check looks at one session and says whether it has ended.
func (s *Set[A, S]) check(m *Member[A, S], now time.Time) (ended bool) {
	if tunnel.Closed(m.Session.Done()) {
		if succeeded := s.plan.Lost(m.peer, now); !succeeded && s.cfg.Events.Lost != nil {
			s.cfg.Events.Lost(m)
		}
		return true
	}
	if !m.Leaving && tunnel.Closed(m.Session.Draining()) {
		m.Leaving = true
		s.plan.Leaving(m.peer, now)
		if s.cfg.Events.Leaving != nil {
			s.cfg.Events.Leaving(m)
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
	if !slices.Equal(*s.seen.Load(), s.members) {
		all := slices.Clone(s.members)
		s.seen.Store(&all)
	}
}

// collect waits for attempts that were cancelled, and takes in what they made all the
// same: the peer may have put connections on it by now, which are to end as all others.
func (s *Set[A, S]) collect() {
	s.release(answer[S]{err: errClosed})
	for s.attempts > 0 || s.rushing {
		if r := <-s.results; r.err == nil {
			s.settle(r, time.Now())
		} else {
			s.ended(r.kind)
		}
	}
	if s.resolving {
		<-s.found
	}
}

// Members are the sessions, some of which may have ended. The slice is not to be
// changed.
func (s *Set[A, S]) Members() []*Member[A, S] { return *s.seen.Load() }

// Active is the number of servers connected that mean to stay; for Events only.
func (s *Set[A, S]) Active() int { return s.plan.Active() }

// Want is the number of servers to be connected to; for Events only.
func (s *Set[A, S]) Want() int { return s.plan.Want() }

// Close ends every session, all at once, and joins all helpers. It is called once Run has
// returned, or instead of it.
func (s *Set[A, S]) Close() {
	for _, m := range s.Members() {
		s.helper.Go(func() { _ = m.Session.Close() })
	}
	s.helper.Wait()
	s.seen.Store(new([]*Member[A, S]))
}

func tell[X, Y any](event func(X, Y), x X, y Y) {
	if event != nil {
		event(x, y)
	}
}
