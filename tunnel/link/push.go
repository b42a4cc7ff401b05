package link

import "konnectivity/tunnel"

// A stream that pushes has no goroutine that waits for its bytes. The read loop
// gives them to the other side of the relay itself, if that takes them on the
// spot; else, and at the end, a goroutine is started that fetches what waits
// and ends when there is nothing more. Between two links nothing then changes
// goroutine, and what was given to a link is sent when there is nothing more to
// read.

// pushing is how a stream pushes.
type pushing struct {
	sink   tunnel.Sink
	count  func(int)
	resume func()
	lost   func(cause error)
	active bool // resume runs, or has seen the end
}

// PushTo implements tunnel.Source.
func (st *Stream) PushTo(dst tunnel.Sink, count func(n int), resume func(), lost func(cause error)) {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.pushing = &pushing{sink: dst, count: count, resume: resume, lost: lost}
	if st.readable() {
		st.wakeReader()
	}
}

// TakeChunks implements tunnel.Source.
func (st *Stream) TakeChunks(dst []tunnel.Chunk) (int, error) {
	st.ses.mu.Lock()
	defer st.ses.mu.Unlock()
	st.releaseInHand()
	if !st.readable() {
		st.pushing.active = false
		return 0, nil
	}
	return st.take(dst)
}

// wakeReader tells whoever is to fetch what waits: a reader, or a goroutine
// that is started for it. The relay joins that one: it has not ended before the
// stream's end was fetched.
func (st *Stream) wakeReader() {
	st.readCond.Broadcast() // what one reader leaves is the next one's
	if p := st.pushing; p != nil && !p.active {
		p.active = true
		go p.resume()
	}
}

// endPush lets a stream that pushes and has nothing left but its end be ended
// on the read loop, without a goroutine for that.
func (ses *Session) endPush(st *Stream) {
	st.pushing.active = true
	ses.mu.Unlock()
	st.pushing.resume()
	ses.mu.Lock()
}

// idlePush says whether the stream pushes, and nothing waits to be fetched.
func (st *Stream) idlePush() bool {
	return st.pushing != nil && !st.pushing.active && len(st.queue) == 0
}

// push gives part to the stream's sink and returns how much was taken. The
// mutex is released meanwhile: two links that push to each other must not hold
// both.
func (ses *Session) push(st *Stream, part tunnel.Chunk) int {
	if part.Len() == 0 || !st.idlePush() {
		return 0
	}
	p := st.pushing
	ses.mu.Unlock()
	n := p.sink.TryWrite(part)
	if n > 0 {
		p.count(n)
		ses.noteSink(p.sink)
	}
	ses.mu.Lock()
	if n > 0 && !st.closed { // else all was given up already
		st.consumed(n)
	}
	return n
}

// maxSinks bounds how many streams are given something before all are flushed.
const maxSinks = 64

func (ses *Session) noteSink(s tunnel.Sink) {
	if n := len(ses.sinks); n > 0 && ses.sinks[n-1] == s {
		return
	}
	if len(ses.sinks) >= maxSinks {
		ses.flushSinks()
	}
	ses.sinks = append(ses.sinks, s)
}

// flushSinks sends what was given to others. It runs on the read loop.
func (ses *Session) flushSinks() {
	for i, s := range ses.sinks {
		s.Flush()
		ses.sinks[i] = nil
	}
	ses.sinks = ses.sinks[:0]
}

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
