package link

import "time"

// keepAlive pings the peer, ends the session when it is dead, and closes the
// connection when the session ends.
func (ses *Session) keepAlive() {
	defer ses.out.close()
	ticker := time.NewTicker(ses.cfg.PingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ses.done:
			return
		case <-ticker.C:
			ses.lookAndPing(time.Now())
		}
	}
}

func (ses *Session) lookAndPing(now time.Time) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.alive.look(now, ses.out.writes.Load(), ses.queue.taken) {
		ses.failLocked(ErrDead)
		return
	}
	ses.forgetUnackedLocked(now)
	ses.pingLocked(now)
}

func (ses *Session) pingLocked(now time.Time) {
	ses.queue.pushPing(ses.alive.ping(now))
	ses.wakeFlusherLocked()
}
