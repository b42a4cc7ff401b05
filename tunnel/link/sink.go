package link

import "konnectivity/tunnel"

// Nonblocking implements tunnel.Sink. A link without a cork has nothing to
// gather in, and takes nothing; CloseWrite blocks on neither.
func (st *Stream) Nonblocking() bool { return true }

// TryWrite implements tunnel.Sink: all of c or nothing. It encrypts into the
// cork, which does not block, and only while nobody else sends.
func (st *Stream) TryWrite(c tunnel.Chunk) int {
	ses := st.ses
	n := c.Len()
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if n == 0 || n > turnBytes || !ses.takesNow() || st.writing || st.writable() != nil || st.send.available() < n {
		return 0
	}
	ses.busy = true
	st.send.spend(n)
	ses.sent += uint64(n)
	first := ses.collect(st)

	ses.mu.Unlock()
	frames, err := 0, ses.write(first)
	if err == nil {
		frames, err = st.writeFrames([]tunnel.Chunk{c}, n)
	}
	ses.mu.Lock()
	ses.dataSent += uint64(frames)

	if err != nil {
		ses.failLocked(err)
	}
	ses.leaveTurn()
	return n
}

// takesNow says whether something can be written without waiting for anybody.
func (ses *Session) takesNow() bool {
	if ses.busy || ses.err != nil || ses.ending != nil || ses.cork == nil || ses.cork.raw == nil {
		return false
	}
	if ses.cork.hasRoom() {
		return true
	}
	ses.flushNow()
	return ses.cork.hasRoom()
}

// Flush implements tunnel.Sink.
func (st *Stream) Flush() {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.ses.flushNow()
}

// flushNow sends what the kernel takes; the rest is the flusher's.
func (ses *Session) flushNow() {
	if ses.cork != nil && ses.cork.tryFlush() {
		ses.leftover = true
		ses.wakeFlusher()
	}
}

// leaveTurn is passTurn for those who must not block: what is pending is left
// to the flusher.
func (ses *Session) leaveTurn() {
	if next := ses.nextTurn(); next != nil {
		next.turn = true
		next.writeCond.Broadcast()
		return
	}
	ses.busy = false
	ses.idleCond.Broadcast()
	if ses.hasPending() {
		ses.wakeFlusher()
	}
}
