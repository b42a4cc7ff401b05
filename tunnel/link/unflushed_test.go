package link

import (
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// flushes counts them.
type flushes struct {
	tunnel.Receiver
	n int
}

func (f *flushes) Flush() { f.n++ }

// Each receiver that has taken bytes is flushed once, and all are before there are too many.
func TestReceiversAreFlushedOnce(t *testing.T) {
	var g unflushed
	a, b := &flushes{}, &flushes{}
	for _, r := range []*flushes{a, a, b, b} {
		g.add(r)
	}
	testutil.Equal(t, a.n+b.n, 0, "flushes")
	testutil.Equal(t, len(g), 2, "those that are noted")
	g.flush()
	g.flush()
	testutil.Holds(t, a.n == 1 && b.n == 1 && len(g) == 0 && g[:2][0] == nil && g[:2][1] == nil,
		"flushed %d and %d times, %v is left", a.n, b.n, g[:2])
	for range maxUnflushed {
		g.add(&flushes{})
		g.add(a)
	}
	testutil.AtLeast(t, a.n, 2, "flushes")
	testutil.AtMost(t, len(g), maxUnflushed, "those that are held")
}
