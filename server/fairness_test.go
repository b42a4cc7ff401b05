package server

import (
	"maps"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// carrier is a tenant in a simulation: what it carries in MB/s, by whether the one
// ahead is held up; the part of it that it starts with, to grow for half of the
// time (0: it does not grow); and how much later its bytes arrive, up to freeTime,
// while nobody is held up.
type carrier struct {
	free, during float64
	start        float64
	delay        time.Duration
}

// part is what part of its rates a tenant has after a part of the time.
func (c carrier) part(gone float64) float64 {
	if c.start == 0 {
		return 1
	}
	return min(1, c.start+(1-c.start)*2*gone)
}

// simulateFairness lets tenants, of which red is the one with many streams, carry
// for a time, and returns what each has carried in bytes.
func simulateFairness(tenants map[string]carrier, period time.Duration) map[string]float64 {
	var f fairness
	began := time.Unix(0, 0)
	now := began
	sums, late := make(map[string]float64), make(map[string]float64)
	carry := func(d time.Duration, held bool) map[string]int64 {
		carried := make(map[string]int64)
		for name, c := range tenants {
			rate, delay := c.free, c.delay
			if held && f.held(name) {
				rate = 0
			} else if held && f.held("red") {
				rate, delay = c.during, 0
			}
			rate *= 1e6 * c.part(float64(now.Sub(began))/float64(period))
			was := late[name]
			late[name] = rate * delay.Seconds()
			if n := rate*d.Seconds() + was - late[name]; n > 0 {
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
		{"one stream beside 64 has half", map[string]carrier{"red": {free: 400}, "blue": {free: 40, during: 250}}, map[string]float64{"red": 150, "blue": 150}},
		{"also if that gains it little", map[string]carrier{"red": {free: 400}, "blue": {free: 220, during: 330}}, map[string]float64{"red": 240, "blue": 240}},
		{"two are behind", map[string]carrier{"red": {free: 400}, "blue": {free: 20, during: 120}, "green": {free: 20, during: 120}}, map[string]float64{"red": 90, "blue": 85, "green": 85}},
		{"one that starts small has half in the end", map[string]carrier{"red": {free: 400}, "blue": {free: 40, during: 250, start: 0.1}}, map[string]float64{"red": 140, "blue": 120}},
		{"who is held down by a line of its own costs the other nothing", map[string]carrier{"red": {free: 400}, "blue": {free: 20, during: 20}}, map[string]float64{"red": 380, "blue": 19.9}},
		{"nor who has what it wants", map[string]carrier{"red": {free: 400}, "blue": {free: 100, during: 110}}, map[string]float64{"red": 380, "blue": 100}},
		{"nor who wants more and more", map[string]carrier{"red": {free: 300}, "blue": {free: 20, during: 20, start: 0.1}}, map[string]float64{"red": 285, "blue": 15}},
		{"what is no bulk holds up nobody", map[string]carrier{"red": {free: 400}, "blue": {free: 0.5, during: 5}}, map[string]float64{"red": 400}},
		{"who has an equal part is not held up", map[string]carrier{"red": {free: 100}, "blue": {free: 90, during: 200}}, map[string]float64{"red": 100, "blue": 90}},
		{"nor who is alone", map[string]carrier{"red": {free: 400}}, map[string]float64{"red": 400}},
		{"nor anybody on a server that has little to do", map[string]carrier{"red": {free: 6}, "blue": {free: 1.5, during: 8}}, map[string]float64{"red": 6}},
	} {
		for delay := range 4 {
			delay := time.Duration(2*delay) * time.Millisecond
			blue := c.tenants["blue"]
			blue.delay = delay
			tenants := maps.Clone(c.tenants)
			tenants["blue"] = blue
			const period = time.Minute
			carried := simulateFairness(tenants, period)
			for name, least := range c.least {
				got := carried[name] / 1e6 / period.Seconds()
				t.Logf("%s, delay %v: %s carried %.0f MB/s", c.what, delay, name, got)
				testutil.AtLeast(t, got, least*0.999, "%s, delay %v: MB/s of %s", c.what, delay, name)
			}
		}
	}
}

// Holds help only if those behind carry more because of them.
func TestHoldsHelp(t *testing.T) {
	type rates struct{ unheld, during, free float64 } // MB/s
	for _, c := range []struct {
		what      string
		red, blue rates
		want      bool
	}{
		{"more during holds, and in all", rates{400, 0, 400}, rates{40, 250, 40}, true},
		{"more during holds, but not in all", rates{400, 0, 400}, rates{40, 50, 30}, false},
		{"more in all, but not during holds", rates{400, 0, 400}, rates{40, 150, 150}, false},
		{"more, but little for what it costs the other", rates{400, 0, 400}, rates{10, 40, 10}, false},
		{"hardly more, though it costs the other nothing", rates{200, 0, 400}, rates{40, 50, 35}, false},
	} {
		var f fairness
		now := time.Unix(0, 0)
		f.begin(map[string]int64{"red": int64(c.red.unheld * 1e6), "blue": int64(c.blue.unheld * 1e6)}, time.Second, now)
		for _, p := range []struct {
			*phase
			red, blue float64
		}{{&f.during, c.red.during, c.blue.during}, {&f.free, c.red.free, c.blue.free}} {
			p.add(f.roles, map[string]int64{"red": int64(p.red * 1e6), "blue": int64(p.blue * 1e6)}, time.Second)
		}
		testutil.Equal(t, f.helps(), c.want, "%s", c.what)
	}
}

// What tenants carry while nobody is held up is looked at again and again, also
// while holds help.
func TestFairnessLooksAnew(t *testing.T) {
	var f fairness
	began := time.Unix(0, 0)
	f.begin(map[string]int64{"red": 100e6, "blue": 10e6}, fairLook, began)
	now := began
	for f.active() && now.Sub(began) < time.Minute {
		now = now.Add(holdFirst + freeTime)
		f.note(map[string]int64{"blue": 2e6}, map[string]int64{"red": 4e6, "blue": 0.4e6}, holdFirst, freeTime, now)
	}
	testutil.Between(t, now.Sub(began), unheldFor, unheldFor+time.Second, "holds end after")
	if f.begin(map[string]int64{"red": 100e6, "blue": 10e6}, fairLook, now); !f.held("red") {
		t.Error("nobody is held up after the look")
	}
}

// A tenant that stops leaves nobody held up.
func TestFairnessEndsWithTheBulk(t *testing.T) {
	var f fairness
	look := map[string]int64{"red": 100e6, "blue": 10e6}
	f.begin(look, fairLook, time.Unix(0, 0))
	testutil.Requires(t, f.held("red") && !f.held("blue"), "roles %v", f.roles)
	for range trialRounds * trialsInVain {
		f.note(map[string]int64{}, map[string]int64{"red": 4e6}, holdFirst, freeTime, time.Unix(0, 0))
	}
	testutil.Holds(t, !f.active() && !f.held("red"), "roles %v after the other has stopped", f.roles)
}
