package shares

import "sync/atomic"

// Budget bounds the memory that a process holds for its peers: unread bytes, and the
// connections themselves. It is divided by Share. Any
// goroutine may use it. The nil Budget bounds nothing.
type Budget struct {
	share  *Share
	number uint64
}

// numbers are given to the parts of budgets.
var numbers atomic.Uint64

// NewBudget returns a budget of max bytes.
func NewBudget(max int64) *Budget { return &Budget{share: NewPool(max).Share()} }

// Share returns a part of the budget for one more client, with a number of its own.
func (b *Budget) Share() *Budget { return b.ShareNumbered(numbers.Add(1)) }

// ShareNumbered returns a part of the budget for the client with that number.
func (b *Budget) ShareNumbered(number uint64) *Budget {
	if b == nil {
		return nil
	}
	return &Budget{share: b.share.in.Share(), number: number}
}

// Divided returns a part of the budget that is a budget of its own, as for a
// tenant: its Share divides what that part may have.
func (b *Budget) Divided() *Budget {
	if b == nil {
		return nil
	}
	return &Budget{share: b.share.in.Share().Share()}
}

// Number identifies a part of a budget to peers, which divide their own memory the
// same way; 0: b is a whole budget.
func (b *Budget) Number() uint64 {
	if b == nil {
		return 0
	}
	return b.number
}

// Bound limits a Divided budget to max bytes, however much is free; 0 lifts the
// limit.
func (b *Budget) Bound(max int64) {
	if b != nil {
		b.share.in.Bound(max)
	}
}

// AtBound reports whether such a limit is nearly used up: three quarters of it are
// held.
func (b *Budget) AtBound() bool {
	return b != nil && b.share.in.bound.Load() > 0 && b.Used() >= b.Max()/4*3
}

// Take holds n bytes and reports whether there is room for them; Give must follow
// if there is.
func (b *Budget) Take(n int) bool { return b == nil || b.share.Take(int64(n)) }

// Hold holds n bytes that cannot be refused, such as those that have arrived.
func (b *Budget) Hold(n int) {
	if b != nil {
		b.share.Add(int64(n))
	}
}

// Give ends what Take or Hold began.
func (b *Budget) Give(n int) { b.Hold(-n) }

// Max returns the size in bytes of the whole budget, or of the Divided one that b is
// part of.
func (b *Budget) Max() int64 {
	if b == nil {
		return 0
	}
	return b.share.in.Max()
}

// Used returns how many bytes of the whole budget, or of the Divided one that b is
// part of, are held.
func (b *Budget) Used() int64 {
	if b == nil {
		return 0
	}
	return b.share.in.Used()
}

// Left returns how many more bytes the client may hold; negative: it holds too many.
func (b *Budget) Left() int64 { return b.share.Left() }

// Cut returns n for a client that holds no more than it may, and less in proportion
// to what it holds beyond that.
func (b *Budget) Cut(n int64) int64 { return b.share.Cut(n) }

// Filling reports whether memory will be scarce soon: the client holds a third of the
// free bytes or more.
func (b *Budget) Filling() bool { return b != nil && 3*b.share.Used() >= b.share.in.free(1) }

// Scarce reports whether those that can do with less memory should.
func (b *Budget) Scarce() bool { return b.Pressure() >= Tight }

// Short reports whether those that can do without memory should.
func (b *Budget) Short() bool { return b.Pressure() >= Short }

// Pressure is how scarce memory is for one client: the bytes it holds, compared with
// the free ones. A single client reaches Tight, Short and Out at half, three quarters
// and eight ninths of the budget.
type Pressure int

const (
	Plenty Pressure = iota
	Tight           // it holds as many bytes as are free
	Short           // three times as many
	Out             // Eagerness times as many
)

// Pressure returns the pressure on the client.
func (b *Budget) Pressure() Pressure {
	switch {
	case b == nil || b.share.Within(1):
		return Plenty
	case b.share.Within(3):
		return Tight
	case b.share.Within(Eagerness):
		return Short
	default:
		return Out
	}
}
