package link

import "time"

// keepAlive pings the peer, ends the session when it is silent for too long,
// and closes the connection when the session ends.
func (ses *Session) keepAlive() {
	defer ses.hangUp()
	ticker := time.NewTicker(ses.cfg.PingInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ses.done:
			return
		case now := <-ticker.C:
			ses.tick(now)
		}
	}
}

func (ses *Session) tick(now time.Time) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if n := ses.writes.Load(); !ses.busy || n != ses.seen {
		ses.seen, ses.lastWrite = n, now
	}
	if now.Sub(ses.lastFrame) >= ses.cfg.DeadAfter || now.Sub(ses.lastWrite) >= ses.cfg.DeadAfter {
		ses.failLocked(ErrDead)
		return
	}
	ses.queuePing()
}

// hangUp closes the connection, which unblocks the read loop and whoever
// writes.
func (ses *Session) hangUp() {
	if ses.cork != nil {
		ses.cork.release()
	}
	_ = ses.conn.Close()
}

// queuePing sends a PING, unless one that is not yet answered still measures
// the round trip; then the same one is repeated, for liveness only.
func (ses *Session) queuePing() {
	now := time.Now()
	ses.lastPing = now
	if ses.pingSent.IsZero() {
		ses.pingValue++
		ses.pingSent = now
	}
	ses.ping = true
	ses.wakeFlusher()
}

// pingWhileBusy measures the round trip more often while data flows, since
// windows are tuned by the least of them.
func (ses *Session) pingWhileBusy() {
	pause := busyPing
	if !ses.rttFloor.known() {
		pause = firstPing
	}
	if ses.lastFrame.Sub(ses.lastPing) > pause {
		ses.queuePing()
	}
}

// addRTT smooths the round trip as TCP does (RFC 6298 §2), in eighths.
func (ses *Session) addRTT(sample time.Duration) {
	ses.rttFloor.add(time.Now(), sample)
	if ses.rtt == 0 {
		ses.rtt = sample
		return
	}
	ses.rtt += (sample - ses.rtt) / 8
}
