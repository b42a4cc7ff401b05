package link

import "time"

// probeTime is how long a link has to show that a write on it makes progress.
const probeTime = 2 * time.Second

// absentTime is how long a peer that may have left has to answer. All that the link
// carries ends with it, so a working link must be able to keep to it: a segment whose
// first repeat is lost, too, comes after up to 3 s (TCP repeats it after up to 1 s, and
// then waits twice as long), and a peer may be denied the CPU for seconds. It is still
// much shorter than DeadAfter.
const absentTime = 6 * time.Second

// doubtTime is how long after a frame was sent a silent peer is probed.
const doubtTime = time.Second

// look ends the session if the peer is dead, and else pings it where need be. A timer
// calls it, so a link that does nothing has no goroutine.
func (ses *Session) look() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.err != nil {
		return
	}
	now := time.Now()
	if ses.alive.look(now, ses.sender.writes.Load(), ses.sender.writer.writing()) {
		ses.failLocked(ErrDead)
		return
	}
	ses.endWaitsLocked(now)
	if ses.sender.flushes = !ses.streams.empty(); ses.sender.flushes {
		ses.sender.socket.fragment()
	}
	if ses.alive.pingNow(now) {
		ses.pingLocked(now)
		ses.doubtLocked()
	}
	ses.looks.Reset(ses.alive.Pause)
}

func (ses *Session) pingLocked(now time.Time) {
	ses.sender.queue.pushPing(ses.alive.ping(now))
	ses.sender.callFlusherLocked()
}

// Probe pings the peer, and ends the link if nothing is received within absentTime and
// four round trips. It is for a caller that has reason to believe that the peer has left
// this link without a word. It does not block.
func (ses *Session) Probe() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	silent := ses.silentLocked()
	ses.probeLocked(&ses.alive.probed, func(uint64) bool { return silent() })
}

// probeLocked pings the peer, and ends the link if dead says so, called with the mutex held and
// the PING's value, when the peer has had the time to answer.
func (ses *Session) probeLocked(pending *bool, dead func(asked uint64) bool) {
	if ses.err != nil {
		return
	}
	ses.pingLocked(time.Now())
	asked := ses.alive.value
	ses.expectLocked(pending, absentTime+4*ses.alive.rtt, func() bool { return !dead(asked) })
}

// silentLocked returns what tells later whether no frame has been received from now on.
func (ses *Session) silentLocked() func() bool {
	heard := ses.alive.heard
	return func() bool { return ses.alive.heard.Equal(heard) }
}

// doubtLocked probes the peer doubtTime after a frame was sent, unless one has been received.
// DeadAfter would be too late for dials, whose time is over by then. It is for links which
// connections outlive, unless the operator lets a peer be silent for longer, and for the side
// that can make another. A segment suffices: on a slow line that bulk has filled, frames are far
// behind. Only Linux tells of segments.
func (ses *Session) doubtLocked() {
	if !tellsSegments || ses.alive.doubted || ses.alive.accepted || !ses.resumes || ses.alive.Dead > DefaultDeadAfter {
		return
	}
	ses.alive.doubted = true
	silent := ses.silentLocked()
	time.AfterFunc(doubtTime, func() {
		ses.mu.Lock()
		defer ses.mu.Unlock()
		ses.alive.doubted = false
		if silent() {
			ses.sender.socket.fragment()
			came := ses.Line().Received
			ses.probeLocked(&ses.alive.probed, func(uint64) bool { return silent() && ses.Line().Received == came })
		}
	})
}

// probeWriteLocked ends the link after probeTime, unless the write in progress proceeds
// or a frame is received by then. A connection that goes on elsewhere waits for a write
// that is stuck here.
func (ses *Session) probeWriteLocked() {
	if ses.sender.writer.writing() {
		writes, silent := ses.sender.writes.Load(), ses.silentLocked()
		ses.expectLocked(&ses.alive.writeProbed, probeTime, func() bool {
			return !ses.sender.writer.writing() || ses.sender.writes.Load() != writes || !silent()
		})
	}
}

// expectLocked ends the link after within, unless excused, called with the mutex held, says
// then that the peer has shown that it lives. pending is set meanwhile: of each kind of probe,
// one is in progress at most.
func (ses *Session) expectLocked(pending *bool, within time.Duration, excused func() bool) {
	if *pending || ses.err != nil {
		return
	}
	*pending = true
	began := time.Now()
	time.AfterFunc(within, func() {
		ses.mu.Lock()
		defer ses.mu.Unlock()
		*pending = false
		switch {
		case excused():
		case late(time.Since(began), within, within):
			ses.expectLocked(pending, within, excused)
		default:
			ses.failLocked(ErrDead)
		}
	})
}
