package link

import (
	"time"

	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

// The arithmetic of credit (§5). No locks, no I/O, no clock: callers bring
// them. All offsets are absolute byte counts of one direction of one stream.

const (
	// initialWindow is what a new stream may send at once: ten round trips'
	// worth of a fresh TCP connection, and little enough that a hundred
	// readers that never read stay below 64 MiB in a chain of processes.
	initialWindow = 128 << 10

	// maxWindow lets one stream fill 1.3 Gbit/s at 100 ms, or 200 MB/s at
	// 50 ms with room for a late credit.
	maxWindow = 16 << 20

	// windowGrowth is how many times larger a window becomes when it grows. With
	// four, it suits a long link within four round trips.
	windowGrowth = 4

	// farGrowth is the step where the round trip is farRTT or longer. A window
	// that stays the same for three round trips looks to the sender's BBR like a
	// full line: it stops doubling its rate, and takes seconds to find the rest.
	// On a lossy line, where a lost segment holds up the credit as well, steps of
	// four were enough for that. With 32 the first step, to 4 MiB, suits a line of
	// 200 Mbit/s and 50 ms, which a window of three round trips' worth fills.
	farGrowth = 32
	farRTT    = 10 * time.Millisecond

	// turnDelay stands for what a busy machine adds to each round trip before
	// the goroutines and processes on the way have had their turn. On short
	// links it is all that counts: a window tuned by the wire alone would
	// starve on the scheduler.
	turnDelay = 700 * time.Microsecond

	// wideWindow is the least window of a bulk stream while nothing else comes by its link, where
	// that is short. Processes that have more at hand run out of it less often, and waking up is
	// a fifth of what eight streams cost, or more. But a message waits for twice as long behind it.
	wideWindow = 512 << 10

	// bulkTime is how long a bulk stream takes for an initialWindow at most. Many share a line,
	// so it is far more than their fair part of one takes.
	bulkTime = 100 * time.Millisecond

	// aloneAfter is for how long a link must have carried bulk alone before windows are wide.
	// Keystrokes, and requests of a client that is at work, come more often, mostly.
	aloneAfter = 250 * time.Millisecond

	// growAfter is how long a reader must have been fast before its window
	// grows, if it is not far. A client that never reads looks fast for as long
	// as the socket buffers toward it fill, which is some 10 ms. Over a far link
	// that takes several round trips, and a wait for one of them tells nothing.
	growAfter = 50 * time.Millisecond

	// grantStep is the most that is consumed before credit is renewed: often
	// enough for a steady flow, seldom enough to cost nothing.
	grantStep = 256 << 10

	// lead is how much more a process between two links grants one of them than it
	// was granted by the other: enough that the other never waits for the first of
	// it. boundStep is by how much less that may be before it is renewed, so lead
	// has to be more.
	lead      = tunnel.RecordSize
	boundStep = lead / 2

	// minWindow keeps a stream moving when memory is short: one TLS record.
	minWindow = 16 << 10
)

// sendCredit is the sender's half: how much it may still send.
type sendCredit struct {
	sent, limit uint64
}

// available is what may be sent now.
func (c *sendCredit) available() int {
	return int(min(c.limit-c.sent, 1<<30))
}

// spend counts n bytes, at most available(), as sent.
func (c *sendCredit) spend(n int) { c.sent += uint64(n) }

// raise takes a new limit and says whether it is an advance. Limits never
// fall: a lower one is an old one that was overtaken.
func (c *sendCredit) raise(limit uint64) bool {
	if limit <= c.limit {
		return false
	}
	c.limit = limit
	return true
}

// recvCredit is the receiver's half: how much it has granted, and how much it
// should grant.
type recvCredit struct {
	received uint64 // has arrived
	consumed uint64 // has been taken by the reader
	limit    uint64 // has been granted
	window   uint64 // what to keep granted beyond consumed
	bound    uint64 // that no grant goes beyond; 0: none

	epoch      time.Time // when the present two windows began to be consumed,
	epochStart uint64    // and at which offset
	fast, bulk pace      // every two windows went fast, or as bulk does
	wide       bool      // as of the last consume
}

// pace is since when every two windows have gone as it says. Zero: the last did not.
type pace struct{ since time.Time }

// note takes in whether two windows went so, which began at began.
func (p *pace) note(held bool, began time.Time) {
	switch {
	case !held:
		p.since = time.Time{}
	case p.since.IsZero():
		p.since = began
	}
}

// lasts reports whether they have for growAfter.
func (p *pace) lasts(now time.Time) bool {
	return !p.since.IsZero() && now.Sub(p.since) >= growAfter
}

func newRecvCredit(window uint64) recvCredit {
	return recvCredit{window: window, limit: window}
}

// receive counts n bytes as arrived, unless they are more than was granted, and reports
// whether it did.
func (c *recvCredit) receive(n int) bool {
	if c.received+uint64(n) > c.limit {
		return false
	}
	c.received += uint64(n)
	return true
}

// unread returns how many bytes have arrived and were not consumed.
func (c *recvCredit) unread() int { return int(c.received - c.consumed) }

// consume counts n bytes as taken by the reader. Once half a window or
// grantStep is used up it grants again: it returns the new limit and true.
// pressure is how scarce memory is; rtt is the least round trip of the link, 0
// while unknown; alone tells whether only bulk comes by it.
func (c *recvCredit) consume(n int, now time.Time, rtt time.Duration, pressure shares.Pressure, alone bool) (limit uint64, grant bool) {
	c.consumed += uint64(n)
	c.tune(now, rtt, pressure)
	c.wide = alone && c.isBulk(now) && rtt < farRTT && pressure == shares.Plenty
	return c.renew()
}

// present is the window by now.
func (c *recvCredit) present() uint64 {
	if c.wide {
		return max(c.window, wideWindow)
	}
	return c.window
}

// isBulk reports whether the reader has been one of bulk for growAfter.
func (c *recvCredit) isBulk(now time.Time) bool { return c.bulk.lasts(now) && !c.lags(now) }

// lags reports whether the present two windows have taken longer than they do in bulk.
func (c *recvCredit) lags(now time.Time) bool {
	return now.Sub(c.epoch) >= bulkTime*time.Duration(2*c.present())/initialWindow
}

// renew grants what may be granted by now, once that is worth a frame.
func (c *recvCredit) renew() (limit uint64, grant bool) {
	window := c.present()
	limit, step := c.consumed+window, min(window/2, grantStep)
	if c.bound > 0 && c.bound < limit {
		limit, step = c.bound, min(step, boundStep)
	}
	if limit < c.limit+step {
		return 0, false
	}
	c.limit = limit
	return limit, true
}

// follow bounds grants to lead beyond next, the limit of the stream that the bytes go on
// to, until the window has grown. So while the speed of the reader at the end is
// unknown, its unread bytes do not wait here as well. follow returns whether the bound
// holds, and a limit to grant.
func (c *recvCredit) follow(next uint64) (limit uint64, grant, follows bool) {
	if c.window > initialWindow {
		return 0, false, false
	}
	c.bound = max(c.bound, next+lead)
	limit, grant = c.renew()
	return limit, grant, true
}

// tune sets the window for the next grant. A window is too small when its
// sender waits for credit instead of the reader waiting for data: at that pace
// two windows go in two round trips; up to eight round trips for what proof asks for
// count, for a window of some round trips' worth. Less than proof would prove nothing:
// it can have piled up while this process was not running, and then goes at once. Nor
// does a pace that lasts less than growAfter, where the reader is not far.
func (c *recvCredit) tune(now time.Time, rtt time.Duration, pressure shares.Pressure) {
	if pressure >= shares.Short {
		c.window = minWindow
	}
	if c.epoch.IsZero() {
		c.epoch, c.epochStart = now, c.consumed
	}
	if c.consumed-c.epochStart < proof(c.present(), rtt) {
		return
	}
	began := c.epoch
	c.bulk.note(!c.lags(now), began)
	c.epoch, c.epochStart = now, c.consumed
	fast := rtt > 0 && now.Sub(began) < 8*max(rtt, turnDelay)
	c.fast.note(fast, began)
	if fast && (rtt >= farRTT || c.fast.lasts(now)) && pressure == shares.Plenty {
		c.window = min(growth(rtt)*c.window, maxWindow)
		c.bound = 0
		c.fast.since = now
	}
}

// proof is how many bytes have to go before they tell how fast the reader is: two windows.
// On a far line it is a quarter of one. A sender that has just begun doubles its rate with
// every round trip, and credit for more takes one to reach it. Where segments are lost, what
// follows them waits in the kernel for one or two round trips more, while credit is used up.
func proof(window uint64, rtt time.Duration) uint64 {
	if rtt >= farRTT {
		return window / 4
	}
	return 2 * window
}

// growth returns how many times larger a window becomes when it grows.
func growth(rtt time.Duration) uint64 {
	if rtt >= farRTT {
		return farGrowth
	}
	return windowGrowth
}
