package link

import "konnectivity/tunnel"

// Nonblocking implements tunnel.Sink. A link without a cork has nothing to
// gather in, and takes nothing; CloseWrite blocks on neither.
func (st *Stream) Nonblocking() bool { return true }

// TryWrite implements tunnel.Sink: all of c or nothing. It encrypts into the
// cork, which does not block, and only while nobody else sends.
func (st *Stream) TryWrite(c tunnel.Chunk) int {
	n := c.Len()
	first, ok := st.tryTurn(n)
	if !ok {
		return 0
	}
	frames, err := st.ses.out.writeTurn(first, st.id(), []tunnel.Chunk{c}, n)
	st.ses.leaveTurn(frames, err)
	return n
}

// tryTurn takes the connection for n bytes if nothing would have to wait.
func (st *Stream) tryTurn(n int) (first []byte, ok bool) {
	ses := st.ses
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if n == 0 || n > turnBytes || !ses.takesNowLocked() ||
		st.send.writing || st.send.writable() != nil || st.send.credit.available() < n {
		return nil, false
	}
	ses.queue.take()
	return ses.spendTurnLocked(&st.send, n), true
}

// takesNowLocked says whether something can be written without waiting for
// anybody.
func (ses *Session) takesNowLocked() bool {
	if ses.queue.taken || ses.err != nil || ses.ending != nil {
		return false
	}
	takes, left := ses.out.takesNow()
	ses.noteFlushLocked(left)
	return takes
}

// Flush implements tunnel.Sink.
func (st *Stream) Flush() {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.ses.noteFlushLocked(st.ses.out.tryFlush())
}

// noteFlushLocked leaves what the kernel has not taken to the flusher.
func (ses *Session) noteFlushLocked(left bool) {
	if left {
		ses.queue.corked = true
		ses.wakeFlusherLocked()
	}
}
