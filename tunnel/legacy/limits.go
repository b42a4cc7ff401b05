package legacy

import (
	"context"
	"time"

	"konnectivity/tunnel/shares"
)

const (
	// defaultConnBuffer is what a connection may hold before it counts as
	// full: enough for the bandwidth-delay product of an ordinary consumer,
	// small enough that a thousand full ones are within reach of a budget.
	defaultConnBuffer = 256 << 10

	// DefaultBudget bounds what all connections of a process hold together.
	DefaultBudget = 64 << 20

	// defaultStallTimeout is how long a full connection's reader may take
	// nothing; it is the time after which konnectivity-client gives up a
	// tunnel whose reader stalls (its readTimeoutSeconds).
	defaultStallTimeout = 10 * time.Second

	// defaultMaxConns bounds the connections and pending dials of one stream.
	defaultMaxConns = 65536
)

// Limits bound what old peers can make this process hold. The zero value means
// the defaults.
type Limits struct {
	connBuffer   int           // bytes a connection holds before it is full
	stallTimeout time.Duration // how long a full connection's reader may take nothing
	maxConns     int           // connections and pending dials of one agent's stream
	Budget       *Budget       // shared by all of the process; nil: one of DefaultBudget of its own
}

func (l Limits) withDefaults() Limits {
	if l.connBuffer <= 0 {
		l.connBuffer = defaultConnBuffer
	}
	if l.stallTimeout <= 0 {
		l.stallTimeout = defaultStallTimeout
	}
	if l.maxConns <= 0 {
		l.maxConns = defaultMaxConns
	}
	if l.Budget == nil {
		l.Budget = NewBudget(DefaultBudget)
	}
	return l
}

// Budget is memory that the connections of a process share. It may be used
// from any goroutine.
type Budget struct{ share *shares.Share }

// NewBudget returns a budget of total bytes.
func NewBudget(total int64) *Budget { return &Budget{shares.NewPool(total).Share()} }

// Share returns a part of the same budget for one client more; see package
// shares.
func (b *Budget) Share() *Budget { return &Budget{b.share.Pool().Share()} }

// Divided returns a part of the same budget that is a budget of its own, as for
// a tenant: its Share divides what that part may have.
func (b *Budget) Divided() *Budget { return &Budget{b.share.Pool().Share().Divide().Share()} }

// Used returns the bytes of the whole budget that are held just now.
func (b *Budget) Used() int64 { return b.share.Pool().Used() }

// Hold has n more bytes count as held, or as many fewer.
func (b *Budget) Hold(n int) { b.add(n) }

// Full says that the holder of this part of the budget may hold no more.
func (b *Budget) Full() bool { return b.free() <= 0 }

// free is how much the holder of this part of the budget may still hold.
func (b *Budget) free() int64 { return b.share.Left() }

func (b *Budget) add(n int) { b.share.Add(int64(n)) }

// Total returns the bytes that may be held.
func (b *Budget) Total() int64 { return b.share.Pool().Max() }

type budgetKey struct{}

// WithBudget makes a frontend's stream that is admitted with this context, and
// a connection that AgentPeer.Dial makes under it, count against b instead of
// the budget of their Limits.
func WithBudget(ctx context.Context, b *Budget) context.Context {
	return context.WithValue(ctx, budgetKey{}, b)
}

// in returns the limits of what is made under ctx.
func (l Limits) in(ctx context.Context) Limits {
	if b, ok := ctx.Value(budgetKey{}).(*Budget); ok {
		l.Budget = b
	}
	return l
}
