package link

import "time"

// Silence is for how long a peer has said nothing, by looks at it. Looks count, not the
// clock: a process that was stopped, or starved, finds that much time has passed, and bytes
// that wait to be read. That silence was its own. So the time before a look that comes late, by
// a quarter of the time that the peer has to answer, does not count. No lock, I/O or clock.
type Silence struct {
	Ask, Dead time.Duration // after which the peer is asked, and counts as dead
	Pause     time.Duration // from the last look to the next
	Lasts     time.Duration // how long nothing had come, at the last look

	looked time.Time // when that was
}

// NewSilence returns one that begins now.
func NewSilence(ask, dead time.Duration, now time.Time) Silence {
	return Silence{Ask: ask, Dead: dead, Pause: ask, looked: now}
}

// late reports whether this process stood still, since so much time has passed instead of due.
func late(passed, due, answer time.Duration) bool { return passed > due+answer/4 }

// Look takes in when the peer was heard last, and returns how much time counts since the
// look before.
func (s *Silence) Look(now, heard time.Time) time.Duration {
	passed := now.Sub(s.looked)
	if late(passed, s.Pause, s.Dead-s.Ask) {
		passed = 0
	}
	s.Lasts += passed
	if !heard.Before(s.looked) {
		s.Lasts = min(now.Sub(heard), passed)
	}
	s.looked = now
	return passed
}
