package uplink

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/logging"
	"konnectivity/tunnel/link"
)

// What is told of the server follows from the last handshake, and of one without
// links from its age as well.
func TestHealth(t *testing.T) {
	refused := errors.New("refused")
	handshake := func(err error) func(*health) { return func(h *health) { h.note(err) } }
	old := func(is bool) func(*health) { return func(h *health) { h.setOld(is) } }
	wait := func(d time.Duration) func(*health) { return func(*health) { time.Sleep(d) } }
	for name, c := range map[string]struct {
		mode        link.Mode
		happens     []func(*health)
		old, ready  bool
		good        bool
		well, badly int64
	}{
		"nothing was tried":            {},
		"a link, which tells itself":   {happens: []func(*health){handshake(nil)}, good: true, well: 1},
		"an old server":                {happens: []func(*health){old(true), handshake(nil)}, old: true, ready: true, good: true, well: 1},
		"an old server, long ago":      {happens: []func(*health){old(true), handshake(nil), wait(readyAge)}, old: true, good: true, well: 1},
		"an old server that went":      {happens: []func(*health){old(true), handshake(nil), handshake(refused)}, old: true, well: 1, badly: 1},
		"an old server that came back": {happens: []func(*health){old(true), handshake(refused), handshake(nil)}, old: true, ready: true, good: true, well: 1, badly: 1},
		"an old server that has links": {happens: []func(*health){old(true), handshake(nil), old(false)}, good: true, well: 1},
		"links off":                    {mode: link.Off, old: true},
		"links off, and reached":       {mode: link.Off, happens: []func(*health){handshake(nil)}, old: true, ready: true, good: true, well: 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHealth(t.Context(), Options{Mode: c.mode, Log: logging.Discard()})
				for _, step := range c.happens {
					step(h)
				}
				if got := h.ready(); (got == nil) != c.ready || h.isOld() != c.old || h.good() != c.good {
					t.Errorf("ready: %v, old: %v, good: %v", got, h.isOld(), h.good())
				}
				if h.connects.Load() != c.well || h.failures.Load() != c.badly {
					t.Errorf("%d worked, %d did not", h.connects.Load(), h.failures.Load())
				}
			})
		})
	}
}

// What is cut short by the Server's own end is no failure of the konnectivity server.
func TestHealthIgnoresItsOwnEnd(t *testing.T) {
	ctx, end := context.WithCancel(t.Context())
	h := newHealth(ctx, Options{Log: logging.Discard()})
	h.note(nil)
	end()
	h.note(context.Canceled)
	if !h.good() || h.failures.Load() != 0 {
		t.Errorf("good: %v, failures: %d", h.good(), h.failures.Load())
	}
}
