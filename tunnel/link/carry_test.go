package link

import "testing"

// What a stream that has ended takes is given back once, and only one that waits takes
// any.
func TestAnEndedStreamHoldsMemory(t *testing.T) {
	b := NewBudget(1 << 20)
	for name, c := range map[string]struct {
		carry carrying
		waits bool
		held  int64
	}{
		"of a connection that ends with it": {carrying{next: &Stream{}}, false, 0},
		"acknowledged":                      {carrying{lasts: true, endIn: true, endOut: true, next: &Stream{}}, false, 0},
		"half of it":                        {carrying{lasts: true, endIn: true, next: &Stream{}}, true, endedMemory},
		"at an end":                         {carrying{lasts: true}, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if waits := c.carry.await(b); waits != c.waits || b.Used() != c.held {
				t.Errorf("waits: %v, holds %d", waits, b.Used())
			}
			c.carry.leave(b)
			c.carry.leave(b)
			if b.Used() != 0 {
				t.Errorf("holds %d after it is closed", b.Used())
			}
		})
	}
}
