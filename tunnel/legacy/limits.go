package legacy

import (
	"sync/atomic"
	"time"
)

const (
	// DefaultConnBuffer is what a connection may hold before it counts as
	// full: enough for the bandwidth-delay product of an ordinary consumer,
	// small enough that a thousand full ones are within reach of a budget.
	DefaultConnBuffer = 256 << 10

	// DefaultBudget bounds what all connections of a process hold together.
	DefaultBudget = 64 << 20

	// DefaultStallTimeout is how long a full connection's reader may take
	// nothing; it is the time after which konnectivity-client gives up a
	// tunnel whose reader stalls (its readTimeoutSeconds).
	DefaultStallTimeout = 10 * time.Second

	// DefaultMaxConns bounds the connections and pending dials of one stream.
	DefaultMaxConns = 65536
)

// Limits bound what old peers can make this process hold. The zero value means
// the defaults.
type Limits struct {
	ConnBuffer   int           // bytes a connection holds before it is full
	StallTimeout time.Duration // how long a full connection's reader may take nothing
	MaxConns     int           // connections and pending dials of one agent's stream
	Budget       *Budget       // shared by all of the process; nil: one of DefaultBudget of its own
}

func (l Limits) withDefaults() Limits {
	if l.ConnBuffer <= 0 {
		l.ConnBuffer = DefaultConnBuffer
	}
	if l.StallTimeout <= 0 {
		l.StallTimeout = DefaultStallTimeout
	}
	if l.MaxConns <= 0 {
		l.MaxConns = DefaultMaxConns
	}
	if l.Budget == nil {
		l.Budget = NewBudget(DefaultBudget)
	}
	return l
}

// Budget is memory that the connections of a process share. It may be used
// from any goroutine.
type Budget struct {
	total int64
	used  atomic.Int64
}

// NewBudget returns a budget of total bytes.
func NewBudget(total int64) *Budget { return &Budget{total: total} }

// Used returns the bytes held just now.
func (b *Budget) Used() int64 { return b.used.Load() }

func (b *Budget) free() int64 { return b.total - b.used.Load() }

// Total returns the bytes that may be held.
func (b *Budget) Total() int64 { return b.total }
