package tunnel

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

const (
	// lingerTime is how long the second half of a half-closed connection
	// may carry nothing before it is taken for forgotten. Long, because a
	// half-closed connection that waits for a slow answer is in order.
	lingerTime = 10 * time.Minute

	// drainTime is how long the other direction may go on delivering what
	// the destination sent before it stopped reading, so that a response
	// that came together with a reset is not lost.
	drainTime = 5 * time.Second

	// batchSize is how many chunks move at once; with one TLS record each
	// that is 64 KiB a system call, and half of a link's first window, so
	// that credit for the other half is already under way.
	batchSize = 4
)

// Relay carries bytes between A and B until both directions have ended. FIN
// goes on as FIN, a reset or error as a reset with its cause. It must not be
// copied after Run was called.
type Relay struct {
	A, B Conn

	// Flow counts the bytes that pass; up is A to B. nil: no one sees them.
	Flow *Flow

	// Paces hold it to a rate, together with all relays that share them; nil: any.
	Paces *Paces

	// Idle bounds the silence of both directions together; 0 means no bound.
	Idle time.Duration

	up, down *direction
	watchdog *watchdog
	detach   func() bool // unties the relay from its context
	place    int         // in Flows.open, which guards it

	left  atomic.Int32 // the directions that have not ended, and the caller of start until it returns
	over  func(error)  // is given the outcome
	cause atomic.Pointer[error]
	cut   atomic.Bool // both ends were reset
}

// errRelayIdle ends a relay that carried nothing for too long.
var errRelayIdle = &ResetError{Code: CodeTimeout}

// writeError marks the failure of a direction's destination.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// Run relays until both directions have ended, then closes A and B. It returns nil when
// both ended in order, else the first cause. When ctx ends, both are reset with ctx's cause,
// or with that of A's Struck, if A has this method: a reset by its peer, also one behind an
// end in order, of which Failed does not tell. It runs once. A direction whose Source
// delivers to a Sink that takes bytes on the spot needs no goroutine; of the others one
// begins on the caller's, the second on one that Run joins, until they rest.
func (r *Relay) Run(ctx context.Context) error {
	over := make(chan error, 1)
	r.start(ctx, func(err error) { over <- err })
	return <-over
}

// start is Run that need not wait: it returns as soon as no direction needs the caller's
// goroutine. over is called with the outcome when both have ended, before that or on a
// goroutine of its own. An idle connection then has no stack, or, of each Source that has
// to be read, the least.
func (r *Relay) start(ctx context.Context, over func(error)) {
	r.over = over
	r.begin(ctx)
	r.carry()
	if r.left.Add(-1) == 0 {
		r.finish()
	}
}

// begin prepares both directions.
func (r *Relay) begin(ctx context.Context) {
	if r.Flow == nil {
		r.Flow = new(Flow)
	}
	r.watchdog = &watchdog{relay: r}
	r.up, r.down = newDirection(r, true, r.B, r.A), newDirection(r, false, r.A, r.B)
	r.left.Store(3)
	r.detach = context.AfterFunc(ctx, func() { r.abort(r.fate(ctx)) })
	if r.Idle > 0 {
		r.watchdog.limit(r.Idle)
	}
}

// carry moves the bytes of the directions that need a goroutine, until the one on its
// caller's ends or rests.
func (r *Relay) carry() {
	upDelivered, downDelivered := r.up.delivers(), r.down.delivers()
	switch {
	case !upDelivered && !downDelivered:
		go r.up.pump()
		r.down.pump()
	case !upDelivered:
		r.up.pump()
	case !downDelivered:
		r.down.pump()
	}
}

// ended is called as a direction has ended, last of all.
func (r *Relay) ended() {
	if r.left.Add(-1) == 0 {
		go r.finish()
	}
}

// finish frees both ends once both directions have ended, and tells the outcome.
func (r *Relay) finish() {
	r.detach()
	r.watchdog.stop()
	if cause := r.cause.Load(); cause != nil {
		r.up.end(*cause)
		r.down.end(*cause)
		r.over(*cause)
		return
	}
	_ = r.A.Close()
	_ = r.B.Close()
	r.over(nil)
}

// settle is called as a direction ends, and decides about the other direction. After an
// end in order it may go on for the linger time. A failed source voids both ends. A
// failed destination may still deliver what it had already sent.
func (r *Relay) settle(err error) {
	var write *writeError
	switch {
	case err == nil:
		r.watchdog.limit(lingerTime)
	case errors.As(err, &write):
		r.cause.CompareAndSwap(nil, &write.err)
		r.watchdog.limit(drainTime)
	default:
		r.abort(err)
	}
}

// abort resets both ends with the first cause, which Run also
// returns: a direction that is cut because it takes too long to deliver the bytes
// before a reset was not idle.
func (r *Relay) abort(cause error) {
	r.cause.CompareAndSwap(nil, &cause)
	r.cut.Store(true)
	first := *r.cause.Load()
	_ = r.A.Reset(first)
	_ = r.B.Reset(first)
}

// fate is why the end of ctx resets both ends: a client that had reset its own before its link
// ended has not lost it, and so nothing waits for it to come back.
func (r *Relay) fate(ctx context.Context) error {
	if a, ok := r.A.(interface{ Struck() error }); ok {
		if err := a.Struck(); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// pace returns the Pace of one direction; nil: none.
func (r *Relay) pace(up bool) *Pace {
	switch {
	case r.Paces == nil:
		return nil
	case up:
		return &r.Paces.Up
	default:
		return &r.Paces.Down
	}
}
