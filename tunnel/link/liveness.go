package link

import "time"

const (
	// busyPing is how often the round trip is measured while data flows.
	busyPing = 500 * time.Millisecond

	// firstPing is the same while the round trip is not known well, at first and
	// where nothing was measured for long; so the first kilobytes tell a short path
	// from a long one before a bulk transfer's own queue lengthens it.
	firstPing = 5 * time.Millisecond

	// ownPing is how often it is measured by a side whose peer pings, while nothing
	// flows.
	ownPing = 30 * time.Second
)

// liveness judges from frames and writes whether the peer lives, and measures
// the round trip by PINGs (§6). No lock, I/O or clock: callers bring them.
type liveness struct {
	Silence
	heard time.Time     // when the last whole frame came
	wrote uint64        // how many writes the connection had taken, at the last look
	stuck time.Duration // how long it had taken none while a writer waited, at the last look

	probed      bool // Session.Probe or doubtLocked awaits an answer
	writeProbed bool // Session.probeWriteLocked awaits progress
	doubted     bool // Session.doubtLocked awaits a frame

	accepted bool      // the peer dialed, and so pings at each of its looks
	asked    bool      // the peer has pinged since the last look
	pinged   time.Time // when the last PING was queued
	value    uint64    // of the newest PING that measures
	sent     time.Time // when that PING was queued; zero once it is answered
	rtt      time.Duration
	floor    rttFloor
}

// look reports whether the peer is dead, and sets Pause. writes is how many writes the
// connection has taken so far, and writing whether a writer waits for it to take more.
func (l *liveness) look(now time.Time, writes uint64, writing bool) (dead bool) {
	l.stuck += l.Look(now, l.heard)
	if !writing || writes != l.wrote {
		l.stuck = 0
	}
	l.wrote = writes
	lasts := max(l.Lasts, l.stuck)
	l.Rest(l.Ask, lasts)
	return lasts >= l.Dead
}

// ping returns what the next PING carries. While one is not answered it is the
// same again, for liveness only.
func (l *liveness) ping(now time.Time) uint64 {
	l.pinged = now
	if l.sent.IsZero() {
		l.value++
		l.sent = now
	}
	return l.value
}

// awaits says whether the PING that carries value has yet to be answered.
func (l *liveness) awaits(value uint64) bool { return l.value == value && !l.sent.IsZero() }

// pingNow says at a look whether to ping. A peer that pings shows by it that it lives,
// and a server has thousands of them. Only who accepted a link may rely on that: if
// both did, a look might find both silent.
func (l *liveness) pingNow(now time.Time) bool {
	asked := l.asked
	l.asked = false
	return !l.accepted || !asked || now.Sub(l.pinged) >= ownPing
}

// pingDue says whether it is time to measure, as data flows.
func (l *liveness) pingDue() bool {
	pause := busyPing
	if !l.floor.known() {
		pause = firstPing
	}
	return l.heard.Sub(l.pinged) > pause
}

// answered takes the answer to a PING, and smooths the round trip as TCP does
// (RFC 6298 §2), in eighths.
func (l *liveness) answered(value uint64, now time.Time) {
	if value != l.value || l.sent.IsZero() {
		return
	}
	sample := now.Sub(l.sent)
	l.sent = time.Time{}
	l.floor.add(now, sample)
	if l.rtt == 0 {
		l.rtt = sample
		return
	}
	l.rtt += (sample - l.rtt) / 8
}
