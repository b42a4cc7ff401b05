package link

import "time"

// Silence is for how long a peer has said nothing, by looks at it. Looks count, not the
// clock: a process that was stopped, or starved, finds that much time has passed, and bytes
// that wait to be read. That silence was its own. So a look that comes late, by more than a
// quarter of the time that the peer has to answer, lengthens the silence to Ask at most: the
// peer is asked, and may still answer. After another late look the time counts as Pause, or a
// process that is starved all the time would never notice that a peer is dead. No lock, I/O
// or clock.
type Silence struct {
	Ask, Dead time.Duration // after which the peer is asked, and counts as dead
	Pause     time.Duration // from the last look to the next
	Lasts     time.Duration // how long nothing had come, at the last look

	looked time.Time // when that look was
	late   bool      // it came late
}

// NewSilence returns one that begins now.
func NewSilence(ask, dead time.Duration, now time.Time) Silence {
	return Silence{Ask: ask, Dead: dead, Pause: ask, looked: now}
}

// late reports whether this process stood still, since so much time has passed instead of due.
func late(passed, due, answer time.Duration) bool { return passed > due+answer/4 }

// Look takes in when the peer was heard last, and returns how much time counts against it
// since the look before.
func (s *Silence) Look(now, heard time.Time) time.Duration {
	counts, again := now.Sub(s.looked), s.late
	if s.late = late(counts, s.Pause, s.Dead-s.Ask); s.late {
		counts = 0
		if again {
			counts = s.Pause
		}
	}
	if !heard.Before(s.looked) {
		s.Lasts = 0
	}
	silent := now.Sub(heard)
	s.Lasts = min(s.Lasts+counts, silent)
	if s.late {
		s.Lasts = max(s.Lasts, min(s.Ask, silent))
	}
	s.looked = now
	return counts
}

// Rest sets Pause: to next, or to less if the next look, even one that is not late yet, could find
// that the peer, silent for lasts, is dead. Then there is another look before that: after a stop
// right behind a question, the answer is yet to be read.
func (s *Silence) Rest(next, lasts time.Duration) {
	answer := s.Dead - s.Ask
	half := answer / 2
	s.Pause = min(next, s.Dead-lasts)
	if s.Pause > half && lasts+s.Pause+answer/4 >= s.Dead {
		s.Pause = s.Dead - lasts - half
	}
}
