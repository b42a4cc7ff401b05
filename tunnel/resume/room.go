package resume

import (
	"time"

	"konnectivity/tunnel/link"
)

const (
	// maxKept is how much memory an end keeps of what was not acknowledged before
	// its writer has to wait: as much as the largest window of a link.
	maxKept = 16 << 20

	// minKept is the same at first, while memory is scarce, and where there is no
	// carrier to give it to: the first window of a link, and twice what a peer
	// may leave unacknowledged.
	minKept = 128 << 10

	// roomGrowth is the step by which the room grows: that of a link's window,
	// which it has to keep ahead of.
	roomGrowth = 4

	// growAfter is how long a writer must have wanted more before it gets that.
	// A destination that never reads acknowledges what its socket's buffers
	// take, which is for some 10 ms.
	growAfter = 50 * time.Millisecond

	// roomLasts is how long a room outlives the last acknowledgement.
	roomLasts = time.Second
)

// room is how much an end keeps before its writer has to wait. It begins small
// and grows with the acknowledgements of a writer that waits for them: so a
// destination that takes nothing costs little. nil is the room of an end whose
// writer has never had to wait.
type room struct {
	more   int       // than minKept
	acked  int       // since it last grew
	wanted time.Time // when the writer first had to wait; zero: it has not
	last   time.Time // acknowledgement
}

// limit is the room there is.
func (r *room) limit() int {
	if r == nil {
		return minKept
	}
	return minKept + r.more
}

// want notes that a writer waits for more. After a time without acknowledgements
// all begins anew.
func (r *room) want(now time.Time) {
	if now.Sub(r.last) >= roomLasts {
		*r = room{last: now}
	}
	if r.wanted.IsZero() {
		r.wanted = now
	}
}

// grow takes in that n bytes were acknowledged.
func (r *room) grow(n int, now time.Time) {
	if r == nil {
		return
	}
	r.last = now
	r.acked += n
	if r.acked >= r.limit() && !r.wanted.IsZero() && now.Sub(r.wanted) >= growAfter {
		r.more = min(roomGrowth*r.limit(), maxKept) - minKept
		r.acked = 0
	}
}

// limit is how much is kept now before writers wait. Those who have much make room
// before memory is scarce: connections that begin then would be plain.
func (c *Conn) limit() int {
	if c.st == nil || c.ends.budget.Filling() {
		return minKept
	}
	return c.room.limit()
}

// full says whether writers have to wait. What the peer may leave unacknowledged has
// room whatever memory it pins, or they would wait for the peer to fall silent.
func (c *Conn) full() bool {
	least := Step
	if c.hasMuch() {
		least = BigStep
	}
	return c.end.Out.Size() >= c.limit() && c.end.Out.Kept() >= least
}

// hasMuch says whether the peer may leave more unacknowledged than at first.
func (c *Conn) hasMuch() bool { return c.limit() >= 2*BigStep }

// acknowledge tells the peer what was taken, and how much is kept here, unless there is
// no carrier: a lie that came by it may just have ended the connection.
func (c *Conn) acknowledge() {
	if c.st == nil {
		return
	}
	c.big = c.hasMuch()
	c.st.Acknowledge(link.Ack{Offset: c.end.In.Tell(), End: c.end.In.Finished(), Big: c.big})
}

// acked takes in what the peer acknowledges. What a lie leads to is settled.
func (c *Conn) acked(a link.Ack) {
	now := time.Now()
	before := c.end.Out.Kept()
	_ = c.end.Ack(a.Offset, now)
	c.room.grow(before-c.end.Out.Kept(), now)
	c.end.In.Keeps(a.Big)
	if c.st != nil && c.end.Carried() && (c.end.Due() || c.big != c.hasMuch()) {
		c.acknowledge()
	}
}
