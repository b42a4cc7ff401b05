package peers

import (
	"context"

	"konnectivity/tunnel"
)

// Now returns a session for somebody who has none to use: the first that comes
// about, by a Rush that all who ask meanwhile share. It waits until then, until
// that has failed, or until ctx ends.
func (s *Set[A, S]) Now(ctx context.Context) (S, error) {
	var none S
	reply := make(chan answer[S], 1) // so that the loop never waits for us
	select {
	case s.asked <- reply:
	case <-ctx.Done():
		return none, context.Cause(ctx)
	case <-s.over:
		return none, errClosed
	}
	select {
	case a := <-reply:
		return a.session, a.err
	case <-ctx.Done():
		return none, context.Cause(ctx)
	}
}

// Warm begins a Rush for nobody yet, so that the first who asks finds it under
// way.
func (s *Set[A, S]) Warm(ctx context.Context) {
	select {
	case s.asked <- make(chan answer[S], 1):
	case <-ctx.Done():
	case <-s.over:
	}
}

// Offer hands over a session that was made elsewhere. Where Run has ended it is
// closed.
func (s *Set[A, S]) Offer(address A, session S) {
	select {
	case s.results <- result[A, S]{address: address, session: session, kind: offered}:
	case <-s.over:
		_ = session.Close()
	}
}

// rush begins a Rush, unless one is under way or not needed any more.
func (s *Set[A, S]) rush(ctx context.Context, reply chan<- answer[S]) {
	if m := s.usable(); m != nil {
		reply <- answer[S]{session: m.Session}
		return
	}
	s.waiting = append(s.waiting, reply)
	if s.rushing {
		return
	}
	s.rushing = true
	s.helper.Go(func() {
		bounded, cancel := context.WithTimeout(ctx, s.cfg.ConnectTimeout)
		defer cancel()
		address, session, err := s.cfg.Rush(bounded)
		s.results <- result[A, S]{address, session, err, rushed}
	})
}

// usable is a member that means to stay; nil if there is none.
func (s *Set[A, S]) usable() *Member[A, S] {
	for _, m := range s.members {
		if !m.Leaving && !tunnel.Closed(m.Session.Done()) && !tunnel.Closed(m.Session.Draining()) {
			return m
		}
	}
	return nil
}

// release answers all who wait.
func (s *Set[A, S]) release(a answer[S]) {
	for _, reply := range s.waiting {
		reply <- a
	}
	s.waiting = nil
}
