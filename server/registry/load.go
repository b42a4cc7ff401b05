package registry

import (
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
)

const (
	// minDialTime is what every dial is taken to cost at least, so that
	// noise below a millisecond does not decide, and a new agent without a
	// history starts as a quick one.
	minDialTime = time.Millisecond

	// latencyHalfLife is how fast an agent's slowness is forgotten while it
	// is not asked: a slow agent is tried again now and then, a recovered one
	// comes back within a minute.
	latencyHalfLife = 10 * time.Second

	// denialTime is how long an agent gives way to others after its policy has
	// denied a dial, and maxDenialTime what that grows to, twofold for each denial
	// after another. It answers at once and carries nothing, so that it would seem
	// the best there is.
	denialTime    = time.Second
	maxDenialTime = 32 * time.Second
)

// load is how busy and how quick a connection is. Its fields are atomics: it is
// read under the registry's read lock and written by dials without any lock.
type load struct {
	pending atomic.Int64 // dials that have not been answered
	latency atomic.Int64 // smoothed time of a dial, nanoseconds
	updated atomic.Int64 // at which tunnel.Moment

	denials atomic.Int64 // dials in a row that its policy denied
	denied  atomic.Int64 // at which tunnel.Moment the last one was
}

// denies says that the agent has just denied a dial, and has answered none since.
func (l *load) denies(now tunnel.Moment) bool {
	n := l.denials.Load()
	if n == 0 {
		return false
	}
	return time.Duration(int64(now)-l.denied.Load()) < min(denialTime<<min(n-1, 8), maxDenialTime)
}

// cost grows with what the agent carries and with how slow it answers, so that
// a slow agent sheds load to the others.
func (l *load) cost(streams int, now tunnel.Moment) int64 {
	latency := l.latency.Load()
	if age := int64(now) - l.updated.Load(); age > 0 {
		latency >>= min(uint64(age)/uint64(latencyHalfLife), 63)
	}
	latency = max(latency, int64(minDialTime))
	return latency * (int64(streams) + l.pending.Load() + 1)
}

// dialed notes how a dial went. Only answers that the destination's network
// gave at once speak of the agent's speed: a time-out speaks of the
// destination, and a frozen agent shows in pending instead. far says that it is
// another server: that one is blamed where it has no agent, though it said that it
// has, and not for what its agents deny.
func (l *load) dialed(took time.Duration, err error, far bool, now tunnel.Moment) {
	denied := tunnel.FailDenied
	if far {
		denied = tunnel.FailNoAgent
	}
	switch tunnel.FailureOf(err) {
	case denied:
		l.denied.Store(int64(now))
		l.denials.Add(1)
		return
	case 0, tunnel.FailRefused, tunnel.FailDenied:
		l.denials.Store(0)
	default:
		return
	}
	old := l.latency.Load()
	// A lost update between concurrent dials only makes the mean a bit older.
	l.latency.Store(old + (int64(took)-old)/4)
	l.updated.Store(int64(now))
}
