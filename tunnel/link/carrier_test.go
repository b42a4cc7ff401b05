package link

import "testing"

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
			if waits := st.awaitsAcksLocked(); waits != c.waits || b.Used() != c.held {
				t.Errorf("waits: %v, holds %d", waits, b.Used())
			}
			st.carrier.releaseMemory(b)
			st.carrier.releaseMemory(b)
			if b.Used() != 0 {
				t.Errorf("holds %d after it is closed", b.Used())
			}
		})
	}
}
