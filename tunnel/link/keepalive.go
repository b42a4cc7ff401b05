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
	ses.sender.flushes = !ses.streams.empty()
	if ses.alive.pingNow(now) {
		ses.pingLocked(now)
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
	if ses.err == nil {
		ses.pingLocked(time.Now())
		ses.expectLocked(&ses.alive.probed, absentTime+4*ses.alive.rtt, func() bool { return false })
	}
}

// probeWriteLocked ends the link after probeTime, unless the write in progress proceeds
// or a frame is received by then. A connection that goes on elsewhere waits for a write
// that is stuck here.
func (ses *Session) probeWriteLocked() {
	if ses.sender.writer.writing() {
		writes := ses.sender.writes.Load()
		ses.expectLocked(&ses.alive.writeProbed, probeTime, func() bool { return !ses.sender.writer.writing() || ses.sender.writes.Load() != writes })
	}
}

// expectLocked ends the link after within, unless a frame is received by then, or
// excused, called with the mutex held, says that none is needed. pending is set
// meanwhile: of each kind of probe, one is in progress at most.
func (ses *Session) expectLocked(pending *bool, within time.Duration, excused func() bool) {
	if *pending || ses.err != nil {
		return
	}
	*pending = true
	began, heard := time.Now(), ses.alive.heard
	time.AfterFunc(within, func() {
		ses.mu.Lock()
		defer ses.mu.Unlock()
		*pending = false
		switch {
		case excused() || !ses.alive.heard.Equal(heard):
		case late(time.Since(began), within, within):
			ses.expectLocked(pending, within, excused)
		default:
			ses.failLocked(ErrDead)
		}
	})
}
