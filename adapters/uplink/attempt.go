package uplink

import (
	"context"
	"time"

	"konnectivity/tunnel/link"
)

// spareTime is how long a connection that turned out to be to an old server
// waits for the request that wanted it.
const spareTime = 5 * time.Second

// quickRetries are the pauses before a server that has just worked is tried
// again; a request waits for them.
var quickRetries = [...]time.Duration{100 * time.Millisecond, 200 * time.Millisecond, 400 * time.Millisecond}

// connectAlone makes a connection for one request, unless the server has learnt
// to speak the link meanwhile.
func (s *Server) connectAlone(ctx context.Context) (*pooled, handshaken, error) {
	connecting, cancel := context.WithTimeout(ctx, s.opt.ConnectTimeout)
	defer cancel()
	h, l, err := s.connect(connecting)
	if err != nil && ctx.Err() == nil { // one who gave up says nothing about the server
		s.note(err)
	}
	if l != nil || err != nil {
		h = handshaken{}
	}
	return l, h, err
}

// connect connects to whichever of the server's addresses works: l is a link
// that has been adopted, or h is a connection to an old server. A server that
// has just worked is tried again a few times within a second, since it may be
// one that is being replaced.
func (s *Server) connect(ctx context.Context) (h handshaken, l *pooled, err error) {
	for n := 0; ; n++ {
		h, err = s.connectAny(ctx)
		if err == nil && h.link() {
			l, err = s.adopt(ctx, h)
		}
		if err == nil || n == len(quickRetries) || !s.healthy() {
			return h, l, err
		}
		select {
		case <-ctx.Done():
			return h, l, err
		case <-time.After(quickRetries[n]):
		}
	}
}

func (s *Server) knownOld() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.old || s.opt.Mode == link.Off
}

// healthy says that the last handshake worked.
func (s *Server) healthy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault == nil && !s.okAt.IsZero()
}

// attempt is the one connection that is being made while it is not known what
// the server speaks; all requests wait for its outcome. The fields may be read
// once done is closed. Neither link nor err: the server is old.
type attempt struct {
	done chan struct{}
	link *pooled
	err  error
}

func (s *Server) join() (*attempt, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, errClosed
	}
	if s.attempt == nil {
		a := &attempt{done: make(chan struct{})}
		s.attempt = a
		s.wg.Go(func() { s.try(a) })
	}
	return s.attempt, nil
}

func (s *Server) try(a *attempt) {
	ctx, cancel := context.WithTimeout(s.ctx, s.opt.ConnectTimeout)
	defer cancel()
	h, l, err := s.connect(ctx)
	switch {
	case err != nil:
		a.err = err
		s.note(err)
	case l != nil:
		a.link = l
	default:
		s.keepSpare(h)
	}
	s.mu.Lock()
	s.attempt = nil
	s.mu.Unlock()
	close(a.done)
}

// spare is a connection to an old server that no request uses yet.
type spare struct {
	handshaken
	timer *time.Timer
}

func (s *Server) keepSpare(h handshaken) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.old = true
	if s.closed || s.spare != nil {
		_ = h.NetConn().Close()
		return
	}
	sp := &spare{handshaken: h}
	sp.timer = time.AfterFunc(spareTime, func() { s.dropSpare(sp) })
	s.spare = sp
}

func (s *Server) takeSpare() (handshaken, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sp := s.spare
	if sp == nil || !sp.timer.Stop() {
		return handshaken{}, false
	}
	s.spare = nil
	sp.handshaken.spare = true
	return sp.handshaken, true
}

func (s *Server) dropSpare(sp *spare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spare == sp {
		s.spare = nil
	}
	_ = sp.NetConn().Close()
}
