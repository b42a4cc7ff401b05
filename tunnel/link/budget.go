package link

import (
	"cmp"
	"fmt"
	"math"
	"runtime/debug"

	"konnectivity/tunnel/shares"
)

// defaultBudget is the memory for received and unread bytes of all links of a
// process where nothing else is known.
const defaultBudget = 256 << 20

// maxBudgetMiB is a tebibyte, which no process has, or what an int counts in bytes: on
// 32-bit machines 2047 MiB.
const maxBudgetMiB = min(1<<20, math.MaxInt>>20)

// Budget bounds the memory of all links of a process; links that share it grow
// their windows less as it fills (§5).
type Budget = shares.Budget

// CheckBudgetMiB returns an error if n is not a valid budget in MiB; 0 leaves the size to
// NewBudget.
func CheckBudgetMiB(n int64) error {
	if n < 0 || n > maxBudgetMiB {
		return fmt.Errorf("want a number from 1 to %d, or 0 for the default", maxBudgetMiB)
	}
	return nil
}

// NewBudget returns a budget of max bytes; 0 or less means autoBudget.
func NewBudget(max int64) *Budget {
	if max <= 0 {
		max = autoBudget()
	}
	return shares.NewBudget(max)
}

// clientBudgets are the shares of the clients that a peer numbers.
type clientBudgets struct {
	whole    *Budget
	of       func(cluster string) *Budget // the part of whole for clients of a cluster; nil: all
	numbered bool                         // the peer is to be believed
	known    map[uint64]*clientBudget
}

// clientBudget is the share of one such client.
type clientBudget struct {
	*Budget
	streams int // open for the client
}

// enter returns the budget of a stream that the peer opens for the client with
// this number, of a cluster; leave follows.
func (c *clientBudgets) enter(number uint64, cluster string) *Budget {
	if !c.numbered || number == 0 || c.whole == nil {
		return c.whole
	}
	b := c.known[number]
	if b == nil {
		if c.known == nil {
			c.known = make(map[uint64]*clientBudget)
		}
		whole := c.whole
		if c.of != nil {
			whole = cmp.Or(c.of(cluster), whole)
		}
		b = &clientBudget{Budget: whole.ShareNumbered(number)}
		c.known[number] = b
	}
	b.streams++
	return b.Budget
}

// release is called once a stream is closed and holds nothing.
func (c *clientBudgets) release(of *Budget) {
	b := c.known[of.Number()]
	if b == nil || b.Budget != of {
		return
	}
	if b.streams--; b.streams == 0 {
		delete(c.known, of.Number())
	}
}

// autoBudget is a quarter of the memory limit that Go's runtime keeps to
// (debug.SetMemoryLimit), and defaultBudget where there is none or it would
// allow more.
func autoBudget() int64 {
	return min(debug.SetMemoryLimit(-1)/4, defaultBudget)
}

// tolerates reports whether a stream that counts in b may keep unread bytes waiting.
// Once memory is out for its client it may keep minWindow, and less and less as the
// rest goes: so the budget holds however many streams there are.
func tolerates(b *Budget, unread int) bool {
	return b == nil || unread == 0 || b.Pressure() < shares.Out || int64(unread) <= b.Cut(minWindow)
}

// firstWindow returns what a new stream that counts in b is granted.
func firstWindow(b *Budget) uint64 {
	if b.Short() {
		return minWindow
	}
	return initialWindow
}
