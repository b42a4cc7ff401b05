package uplink

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/tunnel/link"
)

// readyAge is how old the last handshake with an old server may be for the
// server to count as reachable; three probes.
const readyAge = 3 * probeEvery

// health is what the last handshake told of the server, and how many went well.
// Its methods may be called from any goroutine.
type health struct {
	closing context.Context // what fails behind its end was ended here
	log     logrus.FieldLogger

	connects, failures atomic.Int64

	mu    sync.Mutex
	old   bool      // it was with a server without links
	okAt  time.Time // of the last that worked
	fault error     // why the last one did not; nil if it did
}

func newHealth(closing context.Context, opt Options) *health {
	return &health{closing: closing, log: opt.Log.WithField("server", opt.Address), old: opt.Mode == link.Off}
}

// note keeps whether the server could be reached last, and logs when that
// changes. Only an answer counts as reached: with TLS 1.3 a client learns after
// its handshake that its certificate is refused.
func (h *health) note(err error) {
	if err != nil && h.closing.Err() != nil {
		return
	}
	before, known := h.set(err)
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

// noteBehind notes a failure at one address while another has a link, which
// matters to nobody.
func (h *health) noteBehind(err error) {
	h.failures.Add(1)
	h.log.WithError(err).Debug("no link to one of the server's addresses; retrying")
}

// set takes in how a handshake went and returns why the one before failed, and
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

// isOld says that the server is one without links, or that links are off.
func (h *health) isOld() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.old
}

// good says that the last handshake worked.
func (h *health) good() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.fault == nil && !h.okAt.IsZero()
}

// ready is nil while requests can be expected to get through to a server without
// links, else why not.
func (h *health) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.fault != nil:
		return errors.New(reason(h.fault))
	case h.old && time.Since(h.okAt) < readyAge:
		return nil
	default:
		return errors.New("no link to the konnectivity server is up yet")
	}
}
