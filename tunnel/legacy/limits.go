package legacy

import (
	"cmp"
	"time"

	"konnectivity/tunnel"
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
	connBuffer   int            // bytes a connection holds before it is full
	stallTimeout time.Duration  // how long a full connection's reader may take nothing
	maxConns     int            // connections and pending dials of one agent's stream
	Budget       *shares.Budget // shared by all of the process; nil: one of DefaultBudget of its own
}

func (l Limits) withDefaults() Limits {
	l.connBuffer = cmp.Or(l.connBuffer, defaultConnBuffer)
	l.stallTimeout = cmp.Or(l.stallTimeout, defaultStallTimeout)
	l.maxConns = cmp.Or(l.maxConns, defaultMaxConns)
	if l.Budget == nil {
		l.Budget = shares.NewBudget(DefaultBudget)
	}
	return l
}

// of returns the limits of a client's connections: they count in its own budget, if
// it has one.
func (l Limits) of(c *tunnel.Client) Limits {
	if c != nil && c.GRPC != nil {
		l.Budget = c.GRPC
	}
	return l
}
