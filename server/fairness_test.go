package server

import (
	"testing"
	"time"
)

// carrier is a tenant in a simulation: what it carries in MB/s, by whether the one
// ahead is held up.
type carrier struct{ free, during float64 }

// simulateFairness lets tenants, of which red is the one with many streams, carry
// for a time, and returns what each has carried in bytes.
func simulateFairness(tenants map[string]carrier, period time.Duration) map[string]float64 {
	var f fairness
	sums, now := make(map[string]float64), time.Unix(0, 0)
	carry := func(d time.Duration, held bool) map[string]int64 {
		carried := make(map[string]int64)
		for name, c := range tenants {
			rate := c.free
			if held && f.held(name) {
				rate = 0
			} else if held && f.held("red") {
				rate = c.during
			}
			if n := rate * 1e6 * d.Seconds(); n > 0 {
				carried[name] = int64(n)
				sums[name] += n
			}
		}
		now = now.Add(d)
		return carried
	}
	for end := now.Add(period); now.Before(end); {
		f.begin(carry(fairLook, false), fairLook, now)
		for f.active() && now.Before(end) {
			hold := f.hold
			during := carry(hold, true)
			f.note(during, carry(freeTime, false), hold, freeTime, now)
		}
	}
	return sums
}

func TestFairness(t *testing.T) {
	for _, c := range []struct {
		what    string
		tenants map[string]carrier
		least   map[string]float64 // MB/s
	}{
		{"one stream beside 64 has half", map[string]carrier{"red": {400, 0}, "blue": {40, 250}}, map[string]float64{"red": 80, "blue": 80}},
		{"two are behind", map[string]carrier{"red": {400, 0}, "blue": {20, 120}, "green": {20, 120}}, map[string]float64{"red": 50, "blue": 50, "green": 50}},
		{"who is held down by a line of its own costs the other nothing", map[string]carrier{"red": {400, 0}, "blue": {20, 20}}, map[string]float64{"red": 380, "blue": 20}},
		{"nor who has what it wants", map[string]carrier{"red": {400, 0}, "blue": {100, 110}}, map[string]float64{"red": 380, "blue": 100}},
		{"what is no bulk holds up nobody", map[string]carrier{"red": {400, 0}, "blue": {0.5, 5}}, map[string]float64{"red": 400}},
		{"who has an equal part is not held up", map[string]carrier{"red": {100, 0}, "blue": {90, 200}}, map[string]float64{"red": 100, "blue": 90}},
		{"nor who is alone", map[string]carrier{"red": {400, 0}}, map[string]float64{"red": 400}},
		{"nor anybody on a server that has little to do", map[string]carrier{"red": {6, 0}, "blue": {1.5, 8}}, map[string]float64{"red": 6}},
	} {
		const period = time.Minute
		carried := simulateFairness(c.tenants, period)
		for name, least := range c.least {
			if got := carried[name] / 1e6 / period.Seconds(); got < least*0.999 {
				t.Errorf("%s: %s carried %.0f MB/s, want %.0f", c.what, name, got, least)
			}
		}
	}
}

// A tenant that stops leaves nobody held up.
func TestFairnessEndsWithTheBulk(t *testing.T) {
	var f fairness
	look := map[string]int64{"red": 100e6, "blue": 10e6}
	f.begin(look, fairLook, time.Unix(0, 0))
	if !f.held("red") || f.held("blue") {
		t.Fatalf("roles %v", f.roles)
	}
	for range trialRounds * trialsInVain {
		f.note(map[string]int64{}, map[string]int64{"red": 4e6}, holdFirst, freeTime, time.Unix(0, 0))
	}
	if f.active() || f.held("red") {
		t.Errorf("roles %v after the other has stopped", f.roles)
	}
}
