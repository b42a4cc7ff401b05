package uplink

import "time"

// spareTime is how long a connection that turned out to be to an old server
// waits for the request that wanted it.
const spareTime = 5 * time.Second

// spare is a connection to an old server that no request uses yet.
type spare struct {
	handshaken
	timer *time.Timer
}

func (s *Server) keepSpare(h handshaken) {
	s.mu.Lock()
	defer s.mu.Unlock()
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
