package resume

const (
	// maxKept is the replay limit of an end whose peer acknowledges: the largest window of
	// a link. A carrier takes no more than it has credit for, and writers wait while it lacks
	// minKept, so a destination that takes nothing costs about a link's first window all the
	// same.
	maxKept = 16 << 20

	// minKept is the limit until then, while memory is scarce, and without a carrier: the
	// first window of a link, and twice the bytes that a peer may leave unacknowledged.
	minKept = 128 << 10
)

// limitNow is the replay limit: how many bytes of memory this end keeps to send again before
// its writers wait. While memory is about to be scarce it is the least, so that new
// connections need not be plain.
func (m *Machine) limitNow(scarce bool) int {
	if !m.Up() || scarce || !m.bulk {
		return minKept
	}
	return maxKept
}

// Full reports whether writers have to wait. The bytes that the peer may leave
// unacknowledged are kept whatever memory they pin: the peer acknowledges fewer only after
// quiet. Without a carrier it takes none, so while memory is about to be scarce nothing
// more is kept for it. Nor does more go behind what a goroutine of the Conn has yet to give a
// new carrier: all that is written while that waits for credit would be kept.
func (m *Machine) Full(scarce bool) bool {
	if scarce && !m.Up() || m.Up() && m.Out.Behind() >= minKept {
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
