package link

import (
	"cmp"
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"weak"

	"konnectivity/tunnel"
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
// use it. The zero value is ready to use.
type Clients struct {
	// Of, where the peers are servers that forward (§11), returns the part of Config.Budget
	// that the clients of a cluster divide; nil: there is no such cluster.
	Of func(cluster string) *Budget

	mu    sync.Mutex
	known map[numbered]weak.Pointer[Budget] // until no stream refers to it
}

// numbered is a client, by its peer's id and number, and by who it is where the caller tells: a
// server that has started anew gives numbers again, and connections may outlive it.
type numbered struct {
	peer   string
	number uint64
	who    tunnel.Identity
}

// Share returns the share of a client; whole where its server tells none.
func (c *Clients) Share(of tunnel.Origin, whole *Budget) *Budget {
	if whole == nil || of.Client == 0 {
		return whole
	}
	who := numbered{of.Server, of.Client, of.Who}
	c.mu.Lock()
	defer c.mu.Unlock()
	if b := c.known[who].Value(); b != nil {
		return b
	}
	if c.known == nil {
		c.known = make(map[numbered]weak.Pointer[Budget])
	}
	if c.Of != nil {
		whole = cmp.Or(c.Of(of.Cluster), whole)
	}
	b := whole.ShareNumbered(who.number)
	c.known[who] = weak.Make(b)
	runtime.AddCleanup(b, c.forget, who)
	return b
}

// forget is called when nothing refers to a share of who any more.
func (c *Clients) forget(who numbered) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[who].Value() == nil { // or a newer one has taken its place
		delete(c.known, who)
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
