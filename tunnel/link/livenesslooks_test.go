package link

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// Looks come every 5 s, and 15 s of silence end a link. A process that did not
// run meanwhile takes none of that time for its peer's silence.
func TestLivenessCountsLooks(t *testing.T) {
	type look struct {
		after   float64 // seconds since the last one
		heard   float64 // seconds before it that a frame came; negative: none
		writes  uint64
		writing bool
		dead    bool
	}
	const none = -1
	idle := func(after, heard float64, dead bool) look { return look{after: after, heard: heard, dead: dead} }
	busy := func(after float64, writes uint64, dead bool) look {
		return look{after: after, heard: 0, writes: writes, writing: true, dead: dead}
	}
	testutil.Each(t, map[string][]look{
		"silent":                     {idle(5, none, false), idle(5, none, false), idle(5, none, true)},
		"heard of early in a step":   {idle(5, 4.9, false), idle(5, none, false), idle(5, none, false), idle(0.1, none, true)},
		"heard of now and then":      {idle(5, none, false), idle(5, none, false), idle(5, 1, false), idle(5, none, false), idle(5, none, false), idle(5, none, true)},
		"looks that jitter":          {idle(5.2, none, false), idle(4.8, none, false), idle(5.1, none, true)},
		"asleep for long":            {idle(5, none, false), idle(3600, none, false), idle(1, 0, false), idle(5, none, false)},
		"asleep, and dead":           {idle(60, none, false), idle(5, none, false), idle(5, none, true)},
		"starved, and dead":          {idle(20, none, false), idle(20, none, false), idle(20, none, true)},
		"starved, and heard of late": {idle(20, none, false), idle(20, 19, false), idle(20, none, false), idle(20, none, true)},
		"takes nothing":              {busy(5, 0, false), busy(5, 0, false), busy(5, 0, true)},
		"takes little":               {busy(5, 0, false), busy(5, 0, false), busy(5, 1, false), busy(5, 1, false), busy(5, 1, false), busy(5, 1, true)},
		"asleep while it writes":     {busy(5, 0, false), busy(5, 0, false), busy(60, 0, false), busy(1, 1, false), busy(5, 1, false)},
		"starved, and takes nothing": {busy(20, 0, false), busy(20, 0, false), busy(20, 0, false), busy(20, 0, true)},
	}, func(t *testing.T, looks []look) {
		now := time.Unix(1000, 0)
		l := liveness{Silence: NewSilence(5*time.Second, 15*time.Second, now), heard: now}
		for i, step := range looks {
			now = now.Add(time.Duration(step.after * float64(time.Second)))
			if step.heard >= 0 {
				l.heard = now.Add(-time.Duration(step.heard * float64(time.Second)))
			}
			testutil.Equal(t, l.look(now, step.writes, step.writing), step.dead, "dead at look %d", i+1)
		}
	})
}

// A silent peer is dead just when it may be, wherever between two looks it was heard last.
func TestSilenceEndsInTime(t *testing.T) {
	start := time.Now()
	for _, ask := range []time.Duration{5 * time.Second, 8 * time.Second, 30 * time.Second, time.Minute} {
		dead := ask + 10*time.Second
		for heard := time.Duration(0); heard <= ask; heard += ask / 7 {
			l := liveness{Silence: NewSilence(ask, dead, start), heard: start.Add(heard)}
			now := start
			for ended := false; !ended; {
				now = now.Add(l.Pause)
				ended = l.look(now, 0, false)
			}
			testutil.Between(t, now.Sub(l.heard), dead, dead+time.Second, "asked after %v: dead after", ask)
		}
	}
}

// An agent with --keepalive-time=30s looks at a link every 30 s, and ends it after a silence of
// 40 s. A stop of 12 s before the first PING does not.
func TestShortStopAtLongIntervalEndsNoLink(t *testing.T) {
	start := time.Now()
	dead := func(heard time.Time, interval, silence time.Duration, looks ...time.Duration) (dead []bool) {
		l := liveness{Silence: NewSilence(interval*time.Second, silence*time.Second, start), heard: heard}
		for _, after := range looks {
			dead = append(dead, l.look(start.Add(after*time.Second), 0, false))
		}
		return dead
	}
	before := start.Add(-time.Millisecond)
	testutil.EqualSlices(t, dead(before, 30, 40, 42), []bool{false}, "dead, and never asked")
	testutil.EqualSlices(t, dead(start, 30, 40, 30, 75, 80, 85), []bool{false, false, false, true},
		"dead by a stop right behind a PING, and 10 s without its answer behind that")
	testutil.EqualSlices(t, dead(start, 30, 40, 30, 42), []bool{false, false}, "dead by a short stop right behind a PING")
	testutil.EqualSlices(t, dead(start, 8, 18, 8, 18), []bool{false, false}, "dead by one that is short by this interval")
}

// A probe has 2 s or more to be answered. Where this process stood still for half of that, the
// peer is asked once more; a much shorter stop does not prolong a dead link.
func TestStopsBehindProbes(t *testing.T) {
	for stop, want := range map[time.Duration]bool{0: false, 100 * time.Millisecond: false, time.Second: true, 30 * time.Second: true} {
		testutil.Equal(t, late(probeTime+stop, probeTime, probeTime), want, "late after a stop of %v", stop)
	}
}
