package legacy

import "time"

// phase is how far the end of a connection has come. The closing packet is the
// one by which this side ends its direction: CLOSE_REQ of who asked for the
// connection, CLOSE_RSP of who serves it.
type phase uint8

const (
	flowing   phase = iota // both directions are open
	holding                // ended here; the closing packet is held back
	closing                // ended here; the closing packet is queued, or sent
	answering              // ended there; this side goes on
	finishing              // ended there and here; the closing packet is not sent yet
	told                   // the peer was told to drop it, whatever is under way
	lingering              // ended there and here, and forgotten; what came is still delivered
	over                   // forgotten
	phases
)

func (p phase) String() string {
	return [phases]string{"flowing", "holding", "closing", "answering", "finishing", "told", "lingering", "over"}[p]
}

// step takes an ending from one phase to another.
type step uint8

const (
	hold    step = iota // end here, and hold the closing packet back
	queue               // end here, and queue the closing packet
	peerEnd             // the peer has ended its direction
	tell                // tell the peer to drop the connection
	forget              // have the mux know it no more
	steps
)

// endings are the phases that steps lead to. What is not here changes nothing:
// a connection ends once, and both sides may be about it at the same time.
var endings = [phases]map[step]phase{
	flowing:   {hold: holding, queue: closing, peerEnd: answering, tell: told, forget: over},
	holding:   {queue: closing, tell: told, forget: over},
	closing:   {peerEnd: finishing, tell: told, forget: over},
	answering: {queue: finishing, tell: told, forget: lingering},
	finishing: {tell: told, forget: lingering},
	told:      {forget: over},
}

// ending is the end of a connection, as both kinds have it. The connection's
// lock guards it.
type ending struct {
	phase  phase
	closed bool // Close or Reset was called: whatever comes is dropped
	timer  *time.Timer

	puts  uint64 // of the queue that is watched, at the last tick
	ticks int
}

// take says whether s changed anything.
func (e *ending) take(s step) bool {
	next, changes := endings[e.phase][s]
	if changes {
		e.phase = next
	}
	return changes
}

// writable says whether this side has not ended its direction.
func (e *ending) writable() bool { return e.phase == flowing || e.phase == answering }

// peerEnded says whether the peer has ended its direction in order.
func (e *ending) peerEnded() bool {
	return e.phase == answering || e.phase == finishing || e.phase == lingering
}

// forgotten says whether the mux knows the connection no more.
func (e *ending) forgotten() bool { return e.phase >= lingering }

// after calls f in d, in place of what was to be called.
func (e *ending) after(d time.Duration, f func()) {
	e.stop()
	e.timer = time.AfterFunc(d, f)
}

// stop has nothing called any more.
func (e *ending) stop() {
	if e.timer != nil {
		e.timer.Stop()
	}
}

// tick says whether the queue that is watched has moved since the last one, and
// for how long it has been watched, with a tick every interval.
func (e *ending) tick(puts uint64, interval time.Duration) (moved bool, watched time.Duration) {
	moved, e.puts = puts != e.puts, puts
	e.ticks++
	return moved, time.Duration(e.ticks) * interval
}
