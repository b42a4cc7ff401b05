package uplink

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/sirupsen/logrus"
)

// health is what the last handshake told of the server, and how many worked.
// Its methods may be called from any goroutine.
type health struct {
	closing context.Context // behind its end, failures say nothing about the server
	log     logrus.FieldLogger

	connects, failures atomic.Int64

	mu     sync.Mutex
	worked bool  // one has, sooner or later
	fault  error // why the last one did not; nil if it did
}

func newHealth(closing context.Context, opt Options) *health {
	return &health{closing: closing, log: opt.Log.WithField("server", opt.Address)}
}

// note keeps whether the server could be reached last, and logs when that
// changes. Only an answer counts as reached: with TLS 1.3 a client learns after
// its handshake that its certificate is refused.
func (h *health) note(err error) {
	if err != nil && h.closing.Err() != nil {
		return
	}
	h.mu.Lock()
	before, known := h.fault, h.fault != nil || h.worked
	h.fault, h.worked = err, h.worked || err == nil
	h.mu.Unlock()
	if err != nil {
		h.failures.Add(1)
		if before == nil || reason(before) != reason(err) {
			h.log.WithError(err).Warn(reason(err) + "; retrying")
		}
		return
	}
	h.connects.Add(1)
	if before != nil || !known {
		h.log.Info("reached the konnectivity server")
	}
}

// noteBehind notes a failure at one address while another has a session: requests
// do not depend on it.
func (h *health) noteBehind(err error) {
	h.failures.Add(1)
	h.log.WithError(err).Debug("no link to one of the server's addresses; retrying")
}

// good says that the last handshake worked.
func (h *health) good() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fault == nil && h.worked
}

// ready is nil if a server without links is there, and answered the last time; else
// why requests are not expected to get through.
func (h *health) ready(there bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.fault != nil:
		return errors.New(reason(h.fault))
	case there && h.worked:
		return nil
	default:
		return errors.New("no link to the konnectivity server is up yet")
	}
}
