package admin

import (
	"encoding/json"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A clock that is set, as at boot, makes no connection busy, and none stalled for longer.
func TestClockChangeKeepsStates(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		table, real := NewTable(), time.Now()
		f := &tunnel.Flow{Request: tunnel.Request{Front: "socks5", Address: "a.test:443"}, Opened: real.Add(-time.Minute)}
		table.Opened(f)
		now := testutil.SetClock(real, by)
		got := now.Sub(f.Opened).Round(time.Second)
		testutil.Requires(t, got == time.Minute, "the time made here is %v later", got)
		value, _ := table.conns.Load(f)
		c := value.(*conn)
		state, _, _ := c.state(now, tunnel.ResumeStatus{})
		testutil.Holds(t, state == StateIdle, "set by %v, an idle connection is %s", by, state)
		f.Hold(true, true)
		table.sample(real, sampleEvery)
		table.sample(real, sampleEvery)
		if state, _, seconds := c.state(now, tunnel.ResumeStatus{}); state != StateStalled || seconds < 0 || seconds > 60 {
			t.Errorf("set by %v, a stalled connection is %s for %v s", by, state, seconds)
		}
	}
}

// What happened before the clock was set is told by the clock that was set, and the same each time.
func TestPastIsByTheClockOfNow(t *testing.T) {
	now := time.Now()
	for _, by := range []time.Duration{0, time.Hour, -time.Hour, -50 * 365 * 24 * time.Hour} {
		past := Past{testutil.SetClock(now, by).Add(-time.Minute)}
		var seen Past
		for range 100 {
			got := Past{past.told(time.Now(), func() bool { return true })}
			testutil.Holds(t, seen.IsZero() || seen.Equal(got.Time), "set by %v: %v, and then %v", by, seen, got)
			seen = got
		}
		testutil.Equal(t, now.Round(0).Sub(seen.Time).Round(time.Second), time.Minute, "set by %v, a minute", by)
		again := testutil.Must(json.Marshal(seen))(t) // as by a server that passes it on
		testutil.Holds(t, decode[Past](t, again).Equal(seen.Time), "set by %v: %v became %s", by, seen, again)
	}
	ahead := testutil.Must(json.Marshal(Past{testutil.SetClock(now, time.Hour)}))(t)
	testutil.Holds(t, decode[Past](t, ahead).Sub(now).Abs() < time.Second, "now became %s", ahead)
	none := testutil.Must(json.Marshal(Past{}))(t)
	testutil.Holds(t, decode[Past](t, none).IsZero(), "no time became %s", none)
}

// While the machine is suspended Go's monotonic clock stands still. That sets no clock.
func TestPastOfASuspendedMachine(t *testing.T) {
	past := Past{testutil.SetClock(time.Now(), -8*time.Hour)} // as if it had been so since
	told := testutil.Must(json.Marshal(past))(t)
	testutil.Holds(t, decode[Past](t, told).Equal(past.Round(0)), "%v became %s", past, told)
}

func decode[T any](t *testing.T, text []byte) (v T) {
	t.Helper()
	testutil.NoError(t, json.Unmarshal(text, &v))
	return v
}
