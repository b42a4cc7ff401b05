package admin

import (
	"testing"
	"time"
	"unsafe"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// set is the time t as told by a clock that was set meanwhile, in whole seconds: the
// wall's differs, the monotonic one does not. The package time gives no way to have one.
func set(t time.Time, by time.Duration) time.Time {
	clock := (*struct {
		wall uint64 // its lowest 30 bits are nanoseconds, the next 33 seconds
		ext  int64
	})(unsafe.Pointer(&t))
	clock.wall += uint64(int64(by/time.Second)) << 30
	return t
}

// A clock that is set, as at boot, makes no connection busy, and none stalled for longer.
func TestClockChangeKeepsStates(t *testing.T) {
	for _, by := range []time.Duration{-time.Hour, time.Hour} {
		table, real := NewTable(), time.Now()
		f := &tunnel.Flow{Request: tunnel.Request{Front: "socks5", Address: "a.test:443"}, Opened: real.Add(-time.Minute)}
		table.Opened(f)
		now := set(real, by)
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
