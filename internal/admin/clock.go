package admin

import "time"

// Past is a moment of this process. JSON has it by the clock as it is now, also once that was set,
// as on a machine that has booted with a wrong one: what happened a minute ago is a minute before
// Status.Now.
type Past struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (p Past) MarshalJSON() ([]byte, error) { return p.told(time.Now(), wasSet).MarshalJSON() }

// told is the time by the clock of now. Go's monotonic clock stands still while a machine is
// suspended: then, too, the other is ahead.
func (p Past) told(now time.Time, wasSet func() bool) time.Time {
	if p.IsZero() {
		return p.Time
	}
	ahead := now.Add(p.Sub(now)).Round(0).Sub(p.Round(0)).Round(time.Second) // whole, so that all answers are the same
	if ahead > 0 && !wasSet() {
		ahead = 0
	}
	return p.Round(0).Add(ahead)
}

// booted is when the machine was started, by the clock as it was when this process was.
var booted = bootTime()

func bootTime() time.Time { return time.Now().Round(0).Add(-sinceBoot()) }

// wasSet says whether the clock was set since this process started.
func wasSet() bool { return bootTime().Sub(booted).Round(time.Second) != 0 }
