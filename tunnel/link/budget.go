package link

import (
	"runtime/debug"
	"sync/atomic"
)

// DefaultBudget is the memory for received and unread bytes of all links of a
// process where nothing else is known.
const DefaultBudget = 256 << 20

// Budget bounds the memory that unread bytes take in a whole process. Links
// that share it grow their windows less as it fills (§5). When it is used up,
// streams with more than minWindow unread are reset instead of growing, so the
// memory held is at most the budget and minWindow a stream. It is safe for any
// number of goroutines. The nil Budget bounds nothing.
type Budget struct {
	max  int64
	used atomic.Int64
}

// NewBudget returns a budget of max bytes; 0 or less means AutoBudget.
func NewBudget(max int64) *Budget {
	if max <= 0 {
		max = AutoBudget()
	}
	return &Budget{max: max}
}

// AutoBudget is a quarter of the memory limit that Go's runtime keeps to
// (debug.SetMemoryLimit), and DefaultBudget where there is none or it would
// allow more.
func AutoBudget() int64 {
	return min(debug.SetMemoryLimit(-1)/4, DefaultBudget)
}

// Max is the size of the budget in bytes.
func (b *Budget) Max() int64 {
	if b == nil {
		return 0
	}
	return b.max
}

// Used is how many bytes are held by unread data now.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.used.Load()
}

func (b *Budget) add(n int) {
	if b != nil {
		b.used.Add(int64(n))
	}
}

// pressure is how scarce memory is.
type pressure int

const (
	memoryPlenty pressure = iota // windows may grow
	memoryTight                  // half is used: windows stay
	memoryShort                  // three quarters are used: windows shrink
	memoryOut                    // all is used: hoarders are reset
)

func (b *Budget) pressure() pressure {
	if b == nil {
		return memoryPlenty
	}
	switch used := b.used.Load(); {
	case used < b.max/2:
		return memoryPlenty
	case used < b.max/4*3:
		return memoryTight
	case used < b.max:
		return memoryShort
	default:
		return memoryOut
	}
}

// initialWindow is what a new stream is granted now.
func (b *Budget) initialWindow() uint64 {
	if b.pressure() >= memoryShort {
		return minWindow
	}
	return initialWindow
}
