package link

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync/atomic"

	"konnectivity/tunnel/shares"
)

// defaultBudget is the memory for received and unread bytes of all links of a
// process where nothing else is known.
const defaultBudget = 256 << 20

// maxBudgetMiB is a tebibyte, which no process has.
const maxBudgetMiB = 1 << 20

// Budget bounds the memory that a whole process holds for its peers: bytes that
// nobody has read yet, and what its holder takes of it for connections
// themselves. It is divided by Share; links that share it grow their windows
// less as it fills (§5). It is safe for any number of goroutines. The nil Budget
// bounds nothing.
type Budget struct {
	share  *shares.Share
	number uint64 // by which the peer at the other end of a stream knows it; 0: none

	streams int // of a client that a peer numbered; guarded by that Session's mu
}

// numbers are given out to parts of budgets.
var numbers atomic.Uint64

// CheckBudgetMiB says in words what is wrong with a budget, in MiB, that somebody
// wants; 0 leaves its size to NewBudget.
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
	return &Budget{share: shares.NewPool(max).Share()}
}

// Share returns a part of the same budget for one client more, as package
// shares has it: whoever holds much feels first that memory is scarce, and who
// holds little not before it is gone.
func (b *Budget) Share() *Budget {
	if b == nil {
		return nil
	}
	return &Budget{share: b.share.Pool().Share(), number: numbers.Add(1)}
}

// Divided returns a part of the same budget that is a budget of its own, as for
// a tenant: its Share divides what that part may have.
func (b *Budget) Divided() *Budget {
	if b == nil {
		return nil
	}
	return &Budget{share: b.share.Pool().Share().Divide().Share()}
}

// Bound has a budget that was Divided hold at most max bytes from now on, however
// much is free; 0 lifts that.
func (b *Budget) Bound(max int64) {
	if b != nil {
		b.share.Pool().Bound(max)
	}
}

// AtBound says that it is such a bound that leaves no room: three quarters of it
// are held.
func (b *Budget) AtBound() bool {
	return b != nil && b.share.Pool().Bounded() && b.Used() >= b.Max()/4*3
}

// Take holds n bytes for something that is not payload, and says whether there
// is room for it; Give must follow then.
func (b *Budget) Take(n int) bool { return b == nil || b.share.Take(int64(n)) }

// Hold is Take for what cannot be refused, such as bytes that are there already.
func (b *Budget) Hold(n int) { b.add(n) }

// Filling says that memory will be scarce soon: a third as much as is free is
// held. Whoever heeds it leaves it at that.
func (b *Budget) Filling() bool { return b != nil && 3*b.share.Used() >= b.share.Free(1) }

// Scarce says that whoever could do with less memory should.
func (b *Budget) Scarce() bool { return b.pressure() >= memoryTight }

// Short says that whoever could do without should.
func (b *Budget) Short() bool { return b.pressure() >= memoryShort }

// Give ends what Take or Hold began.
func (b *Budget) Give(n int) { b.add(-n) }

type budgetKey struct{}

// WithBudget has the streams that Session.Dial opens under this context count
// against b, a Share, instead of their session's budget, for one link carries
// many clients. The peer is told which streams are of one client (§2), so that it
// can divide its own memory likewise.
func WithBudget(ctx context.Context, b *Budget) context.Context {
	return context.WithValue(ctx, budgetKey{}, b)
}

// BudgetOf is the Budget that WithBudget has put into ctx; nil: none.
func BudgetOf(ctx context.Context) *Budget {
	b, _ := ctx.Value(budgetKey{}).(*Budget)
	return b
}

// budgetOf is the budget of a stream to be opened under ctx, by default that of
// the link.
func budgetOf(ctx context.Context, link *Budget) *Budget {
	if b, ok := ctx.Value(budgetKey{}).(*Budget); ok {
		return b
	}
	return link
}

// clientBudgets are the shares of the clients that a peer numbers.
type clientBudgets struct {
	whole    *Budget
	numbered bool // the peer is to be believed
	shares   map[uint64]*Budget
}

// enter returns the budget of a stream that the peer opens for the client with
// this number; leave follows.
func (c *clientBudgets) enter(number uint64) *Budget {
	if !c.numbered || number == 0 || c.whole == nil {
		return c.whole
	}
	b := c.shares[number]
	if b == nil {
		if c.shares == nil {
			c.shares = make(map[uint64]*Budget)
		}
		b = c.whole.Share()
		b.number = number
		c.shares[number] = b
	}
	b.streams++
	return b
}

// leave is called once a stream is closed and holds nothing.
func (c *clientBudgets) leave(b *Budget) {
	if b == nil || c.shares[b.number] != b {
		return
	}
	if b.streams--; b.streams == 0 {
		delete(c.shares, b.number)
	}
}

// autoBudget is a quarter of the memory limit that Go's runtime keeps to
// (debug.SetMemoryLimit), and defaultBudget where there is none or it would
// allow more.
func autoBudget() int64 {
	return min(debug.SetMemoryLimit(-1)/4, defaultBudget)
}

// Max is the size of the whole budget in bytes; of one that was Divided, what it
// may have.
func (b *Budget) Max() int64 {
	if b == nil {
		return 0
	}
	return b.share.Pool().Max()
}

// Used is how many bytes of the whole budget, or of one that was Divided, are
// held now.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.share.Pool().Used()
}

func (b *Budget) add(n int) {
	if b != nil {
		b.share.Add(int64(n))
	}
}

// pressure is how scarce memory is for one client: what it holds, in terms of
// what is free. One that is alone feels it at half, three quarters and eight
// ninths of the budget.
type pressure int

const (
	memoryPlenty pressure = iota // windows may grow
	memoryTight                  // it holds as much as is free: windows stay
	memoryShort                  // three times as much: windows shrink
	memoryOut                    // shares.Eagerness times: hoarders are reset
)

func (b *Budget) pressure() pressure {
	switch {
	case b == nil || b.share.Within(1):
		return memoryPlenty
	case b.share.Within(3):
		return memoryTight
	case b.share.Within(shares.Eagerness):
		return memoryShort
	default:
		return memoryOut
	}
}

// tolerates says whether a stream may keep unread bytes waiting. Once memory is
// out for its client it may keep minWindow, and less and less as the rest goes:
// so the budget holds however many streams there are.
func (b *Budget) tolerates(unread int) bool {
	return b == nil || unread == 0 || b.share.Within(shares.Eagerness) || int64(unread) <= b.share.Cut(minWindow)
}

// initialWindow is what a new stream is granted now.
func (b *Budget) initialWindow() uint64 {
	if b.pressure() >= memoryShort {
		return minWindow
	}
	return initialWindow
}
