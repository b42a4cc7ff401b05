package uplink

import (
	"context"
	"errors"
	"testing"

	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
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
			testutil.Equal(t, h.ready(c.there) == nil, c.ready, "ready")
			testutil.Equal(t, h.good(), c.good, "good")
			testutil.Equal(t, h.connects.Load(), c.well, "attempts that worked")
			testutil.Equal(t, h.failures.Load(), c.badly, "attempts that did not")
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
	testutil.Equal(t, h.good(), true, "good")
	testutil.Equal(t, h.failures.Load(), 0, "failures")
}
