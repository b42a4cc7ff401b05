package uplink

import (
	"context"
	"errors"
	"testing"

	"konnectivity/internal/logging"
)

// Readiness by a server without links follows from the last handshake.
func TestHealth(t *testing.T) {
	refused := errors.New("refused")
	handshake := func(err error) func(*health) { return func(h *health) { h.note(err) } }
	for name, c := range map[string]struct {
		happens     []func(*health)
		there       bool // a server without links
		ready, good bool
		well, badly int64
	}{
		"nothing was tried":                {},
		"a link, which tells itself":       {happens: []func(*health){handshake(nil)}, good: true, well: 1},
		"no link, and not yet answered":    {there: true},
		"no link":                          {happens: []func(*health){handshake(nil)}, there: true, ready: true, good: true, well: 1},
		"no link, and it went":             {happens: []func(*health){handshake(nil), handshake(refused)}, there: true, well: 1, badly: 1},
		"no link, and it went and is gone": {happens: []func(*health){handshake(nil), handshake(refused)}, well: 1, badly: 1},
		"no link, and it came back":        {happens: []func(*health){handshake(refused), handshake(nil)}, there: true, ready: true, good: true, well: 1, badly: 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHealth(t.Context(), Options{Log: logging.Silent()})
			for _, step := range c.happens {
				step(h)
			}
			if got := h.ready(c.there); (got == nil) != c.ready || h.good() != c.good {
				t.Errorf("ready: %v, good: %v", got, h.good())
			}
			if h.connects.Load() != c.well || h.failures.Load() != c.badly {
				t.Errorf("%d worked, %d did not", h.connects.Load(), h.failures.Load())
			}
		})
	}
}

// What is cut short by the Server's own end is no failure of the konnectivity server.
func TestHealthIgnoresItsOwnEnd(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	h := newHealth(ctx, Options{Log: logging.Silent()})
	h.note(nil)
	end()
	h.note(context.Canceled)
	if !h.good() || h.failures.Load() != 0 {
		t.Errorf("good: %v, failures: %d", h.good(), h.failures.Load())
	}
}
