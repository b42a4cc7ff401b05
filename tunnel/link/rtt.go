package link

import "time"

// rttMemory is how long a low round trip counts: longer than a burst or a
// stall lasts, short enough to follow a path that has become longer.
const rttMemory = time.Minute

// rttSamples is how many round trips of that time it takes to know the floor well:
// single ones are as long as this machine is busy.
const rttSamples = 16

// rttFloor is the least round trip of the last one to two rttMemory. Windows
// are tuned by it, because full socket buffers on the way and a busy machine
// lengthen the round trips that are measured: a window that grew with those
// would only add to what waits, and stalled streams would keep it.
type rttFloor struct {
	now, before time.Duration // 0: unknown
	since       time.Time     // when now began

	samples, earlier int // of now and of before
}

// add takes a sample.
func (f *rttFloor) add(at time.Time, sample time.Duration) {
	if at.Sub(f.since) >= rttMemory {
		f.before, f.now, f.since = f.now, 0, at
		f.earlier, f.samples = f.samples, 0
	}
	f.now = least(f.now, sample)
	f.samples++
}

// known says whether there were enough samples.
func (f *rttFloor) known() bool { return f.samples+f.earlier >= rttSamples }

// get is the floor, 0 while unknown.
func (f *rttFloor) get() time.Duration { return least(f.now, f.before) }

// least returns the smaller duration; 0 is unknown.
func least(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}
