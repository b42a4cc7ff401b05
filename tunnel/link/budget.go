package link

import (
	"cmp"
	"fmt"
	"math"
	"runtime/debug"
	"sync"

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

// Clients are the shares of memory of the clients that peers number. All links of a process
// have the same Clients, so a client has one share on all lanes of its peer. Any goroutine may
// use it.
type Clients struct {
	// Of, where the peers are servers that forward (§11), returns the part of Config.Budget
	// that the clients of a cluster divide; nil: there is no such cluster.
	Of func(cluster string) *Budget

	mu    sync.Mutex
	known map[numbered]*client // that have streams
}

// numbered is a client, by its peer's id and number.
type numbered struct {
	peer   string
	number uint64
}

// client is one with its share.
type client struct {
	in     *Clients
	who    numbered
	budget *Budget

	streams int // open for it; in.mu guards it
}

// enter counts a stream that is opened for who, of a cluster. leave follows.
func (c *Clients) enter(who numbered, cluster string, whole *Budget) *client {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.known[who]
	if of == nil {
		if c.known == nil {
			c.known = make(map[numbered]*client)
		}
		if c.Of != nil {
			whole = cmp.Or(c.Of(cluster), whole)
		}
		of = &client{in: c, who: who, budget: whole.ShareNumbered(who.number)}
		c.known[who] = of
	}
	of.streams++
	return of
}

// leave is called once a stream is closed and holds nothing.
func (c *client) leave() {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	if c.streams--; c.streams == 0 {
		delete(c.in.known, c.who)
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
