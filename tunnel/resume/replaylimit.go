package resume

import "time"

const (
	// maxKept is the largest replay limit: that of the largest window of a link.
	maxKept = 16 << 20

	// minKept is the limit at first, while memory is scarce, and without a carrier: the
	// first window of a link, and twice the bytes that a peer may leave unacknowledged.
	minKept = 128 << 10

	// limitGrowth is the factor by which the limit grows: that of a link's window, which
	// it must not fall behind.
	limitGrowth = 4

	// growAfter is how long a writer must have wanted more before the limit grows.
	// A destination that never reads acknowledges what its socket's buffers
	// take, which is for some 10 ms.
	growAfter = 50 * time.Millisecond

	// limitLasts is how long a limit outlives the last acknowledgement.
	limitLasts = time.Second
)

// replayLimit is how many bytes of memory an end keeps to send again before its writer
// waits. It begins small, and grows with acknowledgements while the writer waits: so a
// destination that takes nothing costs little. nil is minKept, until a writer waits.
type replayLimit struct {
	more   int       // than minKept
	acked  int       // since the limit last grew
	wanted time.Time // when the writer first had to wait; zero: it has not
	last   time.Time // the last acknowledgement
	told   bool      // the peer counts on twice a BigStep
}

// bytes is the limit.
func (l *replayLimit) bytes() int {
	if l == nil {
		return minKept
	}
	return minKept + l.more
}

// want notes that a writer waits for more. After a time without acknowledgements
// all begins anew.
func (l *replayLimit) want(now time.Time) {
	if now.Sub(l.last) >= limitLasts {
		*l = replayLimit{last: now, told: l.told}
	}
	if l.wanted.IsZero() {
		l.wanted = now
	}
}

// grow takes in that n bytes were acknowledged.
func (l *replayLimit) grow(n int, now time.Time) {
	if l == nil {
		return
	}
	l.last = now
	l.acked += n
	if l.acked >= l.bytes() && !l.wanted.IsZero() && now.Sub(l.wanted) >= growAfter {
		l.more = min(limitGrowth*l.bytes(), maxKept) - minKept
		l.acked = 0
	}
}

// announce notes what the peer is told by the present carrier.
func (l *replayLimit) announce(big bool) {
	if l != nil {
		l.told = big
	}
}

// announced reports whether the peer counts on twice a BigStep.
func (l *replayLimit) announced() bool { return l != nil && l.told }

// limitNow is how many bytes this end keeps now before its writers wait. While memory is
// about to be scarce it is the least, so that new connections need not be plain.
func (m *Machine) limitNow(scarce bool) int {
	if !m.Up() || scarce {
		return minKept
	}
	return m.limit.bytes()
}

// Full reports whether writers have to wait. The bytes that the peer may leave
// unacknowledged are kept whatever memory they pin: the peer acknowledges fewer only after
// quiet. Without a carrier it takes none, so while memory is about to be scarce nothing
// more is kept for it.
func (m *Machine) Full(scarce bool) bool {
	if scarce && !m.Up() {
		return true
	}
	least := Step
	if m.hasMuch(scarce) {
		least = BigStep
	}
	return m.Out.Size() >= m.limitNow(scarce) && m.Out.Kept() >= least
}

// hasMuch reports whether the peer may leave a BigStep unacknowledged.
func (m *Machine) hasMuch(scarce bool) bool { return m.limitNow(scarce) >= 2*BigStep }
