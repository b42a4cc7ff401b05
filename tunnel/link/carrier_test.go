package link

import (
	"testing"

	"konnectivity/internal/testutil"
)

// joint is a Joint that is told nothing.
type joint struct{ Joint }

// A stream that has ended takes memory while it waits to be acknowledged, if it is
// joined to another, and gives it back once.
func TestEndedStreamHoldsMemory(t *testing.T) {
	b := NewBudget(1 << 20)
	for name, c := range map[string]struct {
		carrier carrier
		waits   bool
		held    int64
	}{
		"of a connection that ends with it": {carrier{joint: joint{}}, false, 0},
		"acknowledged":                      {carrier{outlived: true, ends: endBoth, joint: joint{}}, false, 0},
		"acknowledged one way":              {carrier{outlived: true, ends: endIn, joint: joint{}}, true, endedMemory},
		"at an end":                         {carrier{outlived: true}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			st := &Stream{budget: b, carrier: c.carrier}
			testutil.Equal(t, st.awaitsAcksLocked(), c.waits, "it waits")
			testutil.Equal(t, b.Used(), c.held, "bytes held")
			st.carrier.releaseMemory(b)
			st.carrier.releaseMemory(b)
			testutil.Equal(t, b.Used(), 0, "bytes held after it is closed")
		})
	}
}
