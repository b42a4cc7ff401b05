package link

import "time"

// doubtTime is how long a link has to show that it lives once there is reason to
// doubt it.
const doubtTime = 2 * time.Second

// absentTime is the same for a link that the peer may have left. All that the link
// carries ends with it if this is wrong, so there is room for what a link that works
// can meet: a segment whose first repeat is lost, too, comes after up to 3 s (TCP
// repeats it after up to 1 s, and then waits twice as long), and a peer may be denied
// the CPU for seconds. It is still much sooner than silence tells.
const absentTime = 6 * time.Second

// look ends the session if the peer is dead, and pings it otherwise, where need be. A
// timer calls it, so that a link that does nothing has no goroutine for this.
func (ses *Session) look() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.err != nil {
		return
	}
	now := time.Now()
	if ses.alive.look(now, ses.out.writes.Load(), ses.out.writer.writing()) {
		ses.failLocked(ErrDead)
		return
	}
	for _, st := range ses.streams.overdue(now) {
		st.onLocked(acknowledged)
	}
	ses.out.flushes = !ses.streams.empty()
	if ses.alive.pingNow(now) {
		ses.pingLocked(now)
	}
	ses.looks.Reset(ses.cfg.PingInterval)
}

func (ses *Session) pingLocked(now time.Time) {
	ses.out.queue.pushPing(ses.alive.ping(now))
	ses.out.callFlusherLocked()
}

// Doubt asks the peer whether it lives, and ends the link if nothing is heard
// of it within absentTime and four round trips. It is for somebody who has
// reason to believe that the peer has left this link without a word. It does
// not block.
func (ses *Session) Doubt() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.err == nil {
		ses.pingLocked(time.Now())
		ses.proveLocked(&ses.alive.doubted, absentTime+4*ses.alive.rtt, func() bool { return false })
	}
}

// probeWriteLocked ends the link soon unless what is being written gets on, or
// something is heard. A connection that goes on elsewhere has to wait for a write
// that is stuck here, and why it does go on elsewhere may be what the other end
// knows of this path already.
func (ses *Session) probeWriteLocked() {
	if ses.out.writer.writing() {
		writes := ses.out.writes.Load()
		ses.proveLocked(&ses.alive.writeDoubted, doubtTime, func() bool { return !ses.out.writer.writing() || ses.out.writes.Load() != writes })
	}
}

// proveLocked ends the link after a time, unless a frame has come by then or
// excused says that none need to. The mutex is held when it is asked. Of each
// doubt one is under way at most, whatever becomes of the other.
func (ses *Session) proveLocked(doubted *bool, within time.Duration, excused func() bool) {
	if *doubted || ses.err != nil {
		return
	}
	*doubted = true
	began, heard := time.Now(), ses.alive.heard
	time.AfterFunc(within, func() {
		ses.mu.Lock()
		defer ses.mu.Unlock()
		*doubted = false
		switch {
		case excused() || !ses.alive.heard.Equal(heard):
		case time.Since(began) > 2*within: // this process stood still itself
			ses.proveLocked(doubted, within, excused)
		default:
			ses.failLocked(ErrDead)
		}
	})
}
