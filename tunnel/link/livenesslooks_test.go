package link

import (
	"testing"
	"time"
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
	for name, looks := range map[string][]look{
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
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Unix(1000, 0)
			l := liveness{Silence: NewSilence(5*time.Second, 15*time.Second, now), heard: now}
			for i, step := range looks {
				now = now.Add(time.Duration(step.after * float64(time.Second)))
				if step.heard >= 0 {
					l.heard = now.Add(-time.Duration(step.heard * float64(time.Second)))
				}
				if dead := l.look(now, step.writes, step.writing); dead != step.dead {
					t.Fatalf("look %d: dead = %v, silent for %v, stuck for %v", i+1, dead, l.Lasts, l.stuck)
				}
			}
		})
	}
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
			if got := now.Sub(l.heard); got < dead || got > dead+time.Second {
				t.Errorf("asked after %v: dead %v after the last frame, want %v", ask, got, dead)
			}
		}
	}
}

// An agent with --keepalive-time=30s looks at a link every 30 s, and ends it after a silence of
// 40 s. A stop of 12 s before the first PING does not.
func TestShortStopAtLongIntervalEndsNoLink(t *testing.T) {
	start := time.Now()
	l := liveness{Silence: NewSilence(30*time.Second, 40*time.Second, start), heard: start.Add(-time.Millisecond)}
	if l.look(start.Add(42*time.Second), 0, false) {
		t.Error("dead, and never asked")
	}
	l = liveness{Silence: NewSilence(30*time.Second, 40*time.Second, start), heard: start}
	if l.look(start.Add(30*time.Second), 0, false) || l.look(start.Add(75*time.Second), 0, false) {
		t.Error("dead after a stop right behind a PING, whose answer is yet to be read")
	}
	if l.look(start.Add(80*time.Second), 0, false) || !l.look(start.Add(85*time.Second), 0, false) {
		t.Error("not dead 10 s after the stop, and has not answered")
	}
	l = liveness{Silence: NewSilence(30*time.Second, 40*time.Second, start), heard: start}
	if l.look(start.Add(30*time.Second), 0, false) || l.look(start.Add(42*time.Second), 0, false) {
		t.Error("dead after a short stop right behind a PING, whose answer is yet to be read")
	}
	l = liveness{Silence: NewSilence(8*time.Second, 18*time.Second, start), heard: start}
	if l.look(start.Add(8*time.Second), 0, false) || l.look(start.Add(18*time.Second), 0, false) {
		t.Error("dead after a stop right behind a PING that is short by this interval, too")
	}
}

// A probe has 2 s or more to be answered. Where this process stood still for half of that, the
// peer is asked once more; a much shorter stop does not prolong a dead link.
func TestStopsBehindProbes(t *testing.T) {
	for stop, want := range map[time.Duration]bool{0: false, 100 * time.Millisecond: false, time.Second: true, 30 * time.Second: true} {
		if late(probeTime+stop, probeTime, probeTime) != want {
			t.Errorf("stopped for %v: late is not %v", stop, want)
		}
	}
}
