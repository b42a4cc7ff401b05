package link

import "time"

// startup ends a STARTUP that BBR v1 does not end by itself, in which it sends at
// almost three times the line's rate: what the line's queue cannot hold is lost and
// sent again, and a tenth or more of the line is gone for as long as bulk lasts.
//
// BBR ends STARTUP after three round trips in which the rate has not grown by a
// quarter, but only counts those in which the kernel always had unsent bytes. On a far
// line it does not: the whole send buffer is in flight before the congestion window is
// full. Paced below the line's rate for some round trips, fewer bytes are in flight, some
// are unsent, and BBR counts.
type startup struct {
	rate   uint64        // the last from which it had moved by a quarter, bytes per second
	since  time.Time     // when it was that, or when pacing began or ended
	bound  uint64        // to which it is paced, bytes per second; 0: it is not
	rounds time.Duration // how long to pace, or to wait until it is tried again
}

const (
	// fullRounds is after how many round trips a rate that does not grow is the
	// line's: BBR's own figure.
	fullRounds = 3

	// pacedRounds bounds how long BBR is paced. It takes six round trips: one until
	// the bytes in flight have unsent ones behind them, one that sets the rate to
	// compare with, three that count, and one until the next look.
	pacedRounds = 12

	// pacedRest is how long BBR is left alone after pacing has not helped.
	pacedRest = 10 * time.Second

	// queueRTT is the least round trip where a longer one is a queue on the line; on
	// shorter ones it is a processor that was busy.
	queueRTT = 2 * time.Millisecond

	// fullPart is the part of a full send buffer that is payload in flight: the rest
	// is overhead, and room that is freed before more is taken.
	fullPart = 3
)

// bbr is what the kernel tells of a socket.
type bbr struct {
	starts        bool   // it is in STARTUP
	full          bool   // all that the send buffer may hold is under way
	rate          uint64 // of the line, by its estimate, bytes per second
	rtt, leastRTT time.Duration
}

// look takes in what the kernel tells, and sets or lifts the bound.
func (s *startup) look(b bbr, now time.Time) {
	switch since := now.Sub(s.since); {
	case s.bound > 0 && (!b.starts || since >= s.rounds):
		s.bound, s.since, s.rounds = 0, now, pacedRest
	case s.bound > 0:
	case !b.starts || b.rate >= s.rate+s.rate/4 || b.rate < s.rate-s.rate/4:
		s.rate, s.since, s.rounds = b.rate, now, fullRounds*b.rtt
	case since >= s.rounds && b.queued():
		s.bound, s.since, s.rounds = b.rate-b.rate/4, now, pacedRounds*b.rtt
	}
}

// queued reports whether sent bytes wait on the line. A longer round trip alone does not
// prove it: the queue may be another's, and the rate that of a source without more.
func (b bbr) queued() bool {
	return b.full && b.leastRTT >= queueRTT && b.rtt > b.leastRTT+b.leastRTT/4
}
