package lanes

import (
	"fmt"
	"time"
)

const (
	// MaxLanes is the largest bound on the lanes of a Group, and the default of --link-lanes.
	// More bring nothing that can be measured, and each costs buffers and a handshake.
	MaxLanes = 8

	// far is the round trip below which a lost segment is sent again, and what a
	// send buffer holds has arrived, so soon that lanes gain nothing.
	far = 5 * time.Millisecond

	// badSamples is how many samples in a row must have bulk on a line where lanes
	// may help: a short transfer is not worth a handshake.
	badSamples = 2

	// lostSamples is how many samples in a row must have lost segments until the
	// line is a lossy one, and not a queue that overflows as a transfer begins.
	lostSamples = 3

	// fullTrip is what a lane carries in a round trip at least that is limited by its
	// send buffer: of the 4 MiB that Linux allows by default, 2.4 to 2.9 MB are payload.
	fullTrip = 2 << 20

	// lossyTrip is the same where segments are lost: the bytes behind a lost segment
	// stay in the buffer until it has been sent again, and where that is lost, too, the
	// buffer fills up.
	lossyTrip = 1 << 20

	// fastRate is what a lane carries at least, in bytes per second, that may be
	// limited by the core that decrypts what it reads.
	fastRate = 256 << 20

	// fewCores is on how many that core is not one of many.
	fewCores = 3

	// keepFor is how long lanes are kept without bulk, and how long a line counts as
	// lossy.
	keepFor = 45 * time.Second
)

// CheckMax returns an error if n is not a valid bound on lanes.
func CheckMax(n int) error {
	if n < 1 || n > MaxLanes {
		return fmt.Errorf("want a number from 1 (off) to %d", MaxLanes)
	}
	return nil
}

// sample describes all lanes together since the sample before.
type sample struct {
	bulk int           // streams that were bulk
	held bool          // others carried something beside bulk on the first lane
	lost bool          // segments were lost since
	rate uint64        // bytes per second, of the lane that carried most
	rtt  time.Duration // shortest of all lanes; 0: unknown
}

// full says whether a lane had as much under way as a socket can send.
func (s sample) full() bool {
	trip := float64(s.rate) * s.rtt.Seconds()
	return s.rtt >= far && (trip >= fullTrip || s.lost && trip >= lossyTrip)
}

// fast says whether a lane may have had all that its core can do.
func (s sample) fast(cores int) bool { return cores > fewCores && s.rate >= fastRate }

// lanes is how many would serve what the sample saw, on so many cores: one for each
// bulk stream and one for the small where one connection cannot carry more, and two
// where lost segments of bulk hold up the small. A lane is full if the sample before
// found that, too: one of a transfer that ramps up may err. A stream that is alone stays,
// since it loses rate when it moves.
func (s sample) lanes(cores int, full bool) int {
	switch {
	case s.bulk > 1 && full:
		return 1 + s.bulk
	case s.bulk > 1 && s.fast(cores):
		return min(1+s.bulk, cores/2)
	case s.lost && s.held && s.rtt >= far:
		return 2
	}
	return 1
}

// plan says how many lanes there should be. It has no clock: callers bring one.
type plan struct {
	max, cores int

	want  int       // lanes; 0: as 1
	lost  int       // samples in a row with lost segments
	bad   int       // samples in a row with bulk on a line where lanes may help
	full  bool      // the last sample found a lane full
	lossy time.Time // of the last sample that had the line count as lossy
	bulk  time.Time // of the last sample with bulk
}

// update takes in a sample and returns how many lanes there should be, at least 1.
func (p *plan) update(now time.Time, s sample) int {
	if now.Sub(p.bulk) >= keepFor {
		p.want = 1
	}
	if !s.lost || s.bulk == 0 {
		p.lost = 0
	} else if p.lost++; p.lost >= lostSamples {
		p.lossy = now
	}
	s.lost = now.Sub(p.lossy) < keepFor
	wasFull := p.full
	p.full = s.full()
	switch {
	case s.bulk == 0:
		p.bad = 0
		return max(p.want, 1)
	case s.lost || p.full || s.fast(p.cores):
		p.bad++
	default:
		p.bad = 0
	}
	p.bulk = now
	if p.bad >= badSamples {
		p.want = max(p.want, min(s.lanes(p.cores, wasFull && p.full), p.max))
	}
	return max(p.want, 1)
}
