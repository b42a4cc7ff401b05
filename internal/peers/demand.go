package peers

import (
	"context"
	"errors"
	"time"

	"konnectivity/internal/wait"
)

// rushPause is how long after a Rush that failed the next one begins. Callers wait for it,
// so that those that come without a pause, to a server that refuses us, do not cost it a
// handshake each.
const rushPause = 100 * time.Millisecond

// errClosed is the answer of a Set that runs no more.
var errClosed = errors.New("shutting down")

// answer is what a caller of Now waits for.
type answer[S Session] struct {
	session S
	err     error
}

// Now returns a session for a caller that has none to use: one that stays, or the
// first that comes about, by one Rush for all callers. It waits until then,
// until the Rush has failed, or until ctx ends.
func (s *Set[A, S]) Now(ctx context.Context) (session S, err error) {
	reply := make(chan answer[S], 1) // so that the loop never waits for the caller
	if !s.mail.post(func() { s.demand(reply) }) {
		return session, errClosed
	}
	select {
	case a := <-reply:
		return a.session, a.err
	case <-ctx.Done():
		return session, context.Cause(ctx)
	}
}

// Warm begins a Rush before the first call of Now.
func (s *Set[A, S]) Warm() {
	s.mail.post(func() { s.demand(make(chan answer[S], 1)) })
}

// Offer hands over a session that was made elsewhere. A Set that runs no more
// closes it.
func (s *Set[A, S]) Offer(address A, session S) {
	if !s.mail.post(func() { s.join(address, session) }) {
		_ = session.Close()
	}
}

// demand answers a caller of Now, at once or when a Rush is over.
func (s *Set[A, S]) demand(reply chan<- answer[S]) {
	if m := s.usable(); m != nil {
		reply <- answer[S]{session: m.Session}
		return
	}
	if s.ctx.Err() != nil {
		reply <- answer[S]{err: errClosed}
		return
	}
	s.waiting = append(s.waiting, reply)
	if s.rushing {
		return
	}
	s.rushing = true
	pause := time.Until(s.nextRush)
	if pause <= 0 {
		s.rush()
		return
	}
	s.background(func() func() {
		wait.For(s.ctx, pause)
		return s.rush
	})
}

// rush begins a Rush, unless a session came by another way during the pause before it.
func (s *Set[A, S]) rush() {
	if len(s.waiting) == 0 {
		s.rushing = false
		return
	}
	s.background(func() func() {
		ctx, cancel := context.WithTimeout(s.ctx, s.cfg.ConnectTimeout)
		defer cancel()
		address, session, err := s.cfg.Rush(ctx)
		return func() { s.rushed(address, session, err) }
	})
}

// rushed takes in how a Rush went.
func (s *Set[A, S]) rushed(address A, session S, err error) {
	s.rushing = false
	if err == nil {
		s.joinWanted(address, session)
		return
	}
	s.nextRush = time.Now().Add(rushPause)
	if len(s.waiting) == 0 { // a session came by another way
		return
	}
	if s.cfg.Events.Rushed != nil {
		s.cfg.Events.Rushed(err)
	}
	s.release(answer[S]{err: err})
}

// usable is a member that stays; nil if there is none.
func (s *Set[A, S]) usable() *member[A, S] {
	for _, m := range s.members {
		if m.State() < Leaving {
			return m
		}
	}
	return nil
}

// release answers all callers of Now.
func (s *Set[A, S]) release(a answer[S]) {
	for _, reply := range s.waiting {
		reply <- a
	}
	s.waiting = nil
}
