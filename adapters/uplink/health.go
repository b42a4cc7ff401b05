package uplink

import (
	"sync"
	"time"

	"github.com/sirupsen/logrus"
)

// health is what the last handshake told of the server. Its methods may be
// called from any goroutine.
type health struct {
	mu    sync.Mutex
	old   bool      // it was with a server without links
	okAt  time.Time // of the last that worked
	fault error     // why the last one did not; nil if it did
}

// set notes how a handshake went and returns why the one before failed, and
// whether there was one at all.
func (h *health) set(err error) (before error, known bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before, known = h.fault, h.fault != nil || !h.okAt.IsZero()
	h.fault = err
	if err == nil {
		h.okAt = time.Now()
	}
	return before, known
}

func (h *health) setOld(old bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.old = old
}

// now returns all of it.
func (h *health) now() (old bool, okAt time.Time, fault error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.old, h.okAt, h.fault
}

// good says that the last handshake worked.
func (h *health) good() bool {
	_, okAt, fault := h.now()
	return fault == nil && !okAt.IsZero()
}

// note keeps whether the server could be reached last, and logs when that
// changes. Only an answer counts as reached: with TLS 1.3 a client learns after
// its handshake that its certificate is refused.
func (s *Server) note(err error) {
	if err != nil && s.ctx.Err() != nil {
		return
	}
	before, known := s.health.set(err)
	log := s.opt.Log.WithField("server", s.opt.Address)
	if err != nil {
		s.stats.failures.Add(1)
		if before == nil || reason(before) != reason(err) {
			log.WithError(err).Warn(reason(err) + "; retrying")
		}
		return
	}
	s.stats.connects.Add(1)
	if before != nil || !known {
		log.Log(logrus.InfoLevel, "reached the konnectivity server")
	}
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
