package link

import "time"

// look ends the session if the peer is dead, and pings it otherwise, where need be. A
// timer calls it, so that a link that does nothing has no goroutine for this.
func (ses *Session) look() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.err != nil {
		return
	}
	now := time.Now()
	if ses.alive.look(now, ses.out.writes.Load(), ses.queue.taken) {
		ses.failLocked(ErrDead)
		return
	}
	ses.forgetUnackedLocked(now)
	ses.streams.used = !ses.streams.empty()
	if ses.alive.pingNow(now) {
		ses.pingLocked(now)
	}
	ses.looks.Reset(ses.cfg.PingInterval)
}

func (ses *Session) pingLocked(now time.Time) {
	ses.queue.pushPing(ses.alive.ping(now))
	ses.wakeFlusherLocked()
}
