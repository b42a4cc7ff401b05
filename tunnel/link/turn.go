package link

import (
	"time"

	"konnectivity/tunnel"
)

// turnBytes is what one turn of a stream may send before the next stream's:
// four full records.
const turnBytes = 4 * maxPayload

// writeSome sends a part of p by copying it.
func (st *Stream) writeSome(p []byte) (int, error) {
	n := min(len(p), tunnel.ChunkSize)
	batch := [1]tunnel.Chunk{tunnel.CopyChunk(p[:n])}
	defer batch[0].Release()
	for batch[0].Len() > 0 {
		if err := st.writeChunks(batch[:]); err != nil {
			return n - batch[0].Len(), err
		}
	}
	return n, nil
}

// writeChunks sends a part of src, as much as credit and one turn allow, and
// narrows the chunks by it. The first chunk must not be empty.
func (st *Stream) writeChunks(src []tunnel.Chunk) error {
	first, n, err := st.awaitTurn(src)
	if err != nil || n == 0 {
		return err
	}
	out := &st.ses.out
	frames, err := out.writeTurn(first, st.id(), src, n)
	if err == nil {
		err = out.uncork()
	}
	st.ses.endTurn(frames, err)
	if err != nil {
		return st.writeError() // what the stream's holder is told is the loss
	}
	return nil
}

// awaitTurn waits for credit and for the connection, and returns how much of
// src may be written and what goes before it. A small message is left with
// whoever is sending instead: then it is gone, and n is 0.
func (st *Stream) awaitTurn(src []tunnel.Chunk) (first []byte, n int, err error) {
	ses := st.ses
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if err := st.awaitCreditLocked(); err != nil {
		return nil, 0, err
	}
	for _, c := range src {
		n += c.Len()
	}
	if st.leaveSmallLocked(src, n) {
		return nil, 0, nil
	}
	if err := ses.takeTurnLocked(&st.send); err != nil {
		return nil, 0, err
	}
	n = min(n, turnBytes, st.send.credit.available())
	return ses.spendTurnLocked(&st.send, n), n, nil
}

func (st *Stream) awaitCreditLocked() error {
	for {
		if err := st.send.writable(); err != nil {
			return err
		}
		if st.send.credit.available() > 0 {
			return nil
		}
		st.send.cond.Wait()
	}
}

// leaveSmallLocked leaves a small message with whoever is sending and says whether
// it did.
func (st *Stream) leaveSmallLocked(src []tunnel.Chunk, size int) bool {
	ses := st.ses
	if !ses.queue.taken || size > st.send.credit.available() || !ses.queue.pushMessage(&st.send, size, src) {
		return false
	}
	for i := range src {
		src[i] = src[i].Slice(src[i].Len(), src[i].Len())
	}
	st.send.credit.spend(size)
	ses.sentLocked(size)
	return true
}

// spendTurnLocked counts n bytes as sent by h, which has the turn, and returns what
// goes before them.
func (ses *Session) spendTurnLocked(h *sendHalf, n int) []byte {
	h.credit.spend(n)
	ses.sentLocked(n)
	return ses.popFramesLocked(h)
}

// popFramesLocked gathers what goes next. The caller has the turn.
func (ses *Session) popFramesLocked(own *sendHalf) []byte {
	frames := ses.out.keep(ses.queue.pop(ses.out.gather(), own))
	if ses.pausing && !ses.queue.behind() {
		ses.idleCond.Broadcast()
	}
	return frames
}

// takeTurnLocked waits until the connection is h's to write to, or returns why it
// will not be.
func (ses *Session) takeTurnLocked(h *sendHalf) error {
	if ses.err == nil && ses.ending == nil && ses.queue.take() {
		return nil
	}
	ses.queue.pushTurn(h)
	for !h.turn {
		if err := h.writable(); err != nil {
			ses.queue.dropTurn(h)
			return err
		}
		h.cond.Wait()
	}
	h.turn = false
	if err := h.writable(); err != nil {
		ses.leaveTurnLocked()
		return err
	}
	return nil
}

// endTurn ends a turn with its outcome, and passes the connection on. With
// nobody in line, whoever leaves sends what is pending, up to a bound; the
// rest, if more keeps coming, is left to the flusher.
func (ses *Session) endTurn(frames int, err error) {
	const rounds = 4
	for round := 0; ; round++ {
		pending, mine := ses.passTurn(frames, err, round < rounds)
		if !mine {
			return
		}
		frames, err = 0, ses.out.send(pending)
	}
}

// passTurn is one step of endTurn: it returns what the caller has to send, or
// that the connection is no longer the caller's.
func (ses *Session) passTurn(frames int, err error, goOn bool) (pending []byte, mine bool) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.noteTurnLocked(frames, err)
	switch {
	case ses.wakeNextLocked():
	case goOn && ses.err == nil && ses.queue.pending():
		return ses.popFramesLocked(nil), true
	default:
		ses.freeTurnLocked()
	}
	return nil, false
}

// leaveTurn is endTurn for those who must not block: what is pending is left to
// the flusher.
func (ses *Session) leaveTurn(frames int, err error) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.noteTurnLocked(frames, err)
	ses.leaveTurnLocked()
}

func (ses *Session) noteTurnLocked(frames int, err error) {
	ses.count.dataSent += uint64(frames)
	if err != nil {
		ses.failLocked(err)
	}
}

func (ses *Session) leaveTurnLocked() {
	if !ses.wakeNextLocked() {
		ses.freeTurnLocked()
	}
}

// wakeNextLocked gives the connection to the next in line, if there is one.
// Nobody is while the session says goodbye.
func (ses *Session) wakeNextLocked() bool {
	if ses.ending != nil {
		return false
	}
	next := ses.queue.popTurn()
	if next == nil {
		return false
	}
	next.turn = true
	next.cond.Broadcast()
	return true
}

func (ses *Session) freeTurnLocked() {
	ses.queue.taken = false
	ses.idleCond.Broadcast() // for sayGoodbye
	if ses.queue.pending() {
		ses.wakeFlusherLocked()
	}
}

// wakeFlusherLocked has what is pending sent without the caller waiting for it: a
// dial has a context to obey, Close must not hang on a peer that reads nothing,
// and a read loop may be the caller. The flusher runs once whoever has something
// to do now has done it, so what many connections open and close at once goes
// in one record, and only its stack has to hold TLS.
func (ses *Session) wakeFlusherLocked() {
	if ses.queue.taken || ses.wantFlush || ses.err != nil {
		return
	}
	ses.wantFlush = true
	if ses.flushing {
		ses.flushCond.Signal()
		return
	}
	ses.flushing = true
	ses.wg.Go(ses.flushLoop)
}

// flushLoop sends for those who must not block.
func (ses *Session) flushLoop() {
	for ses.awaitFlush() {
		ses.endTurn(0, nil)
	}
}

// awaitFlush waits until there is something to flush and nobody else to do so,
// and takes the connection for it; false means that the flusher is to end: the
// session has, or there is no stream, and was none for a time, that could want it
// soon.
func (ses *Session) awaitFlush() bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for ses.err == nil {
		switch {
		case ses.wantFlush:
			ses.wantFlush = false
			if ses.queue.pending() && ses.queue.take() {
				return true
			}
		case !ses.streams.used:
			ses.flushing = false
			return false
		default:
			ses.flushCond.Wait()
		}
	}
	return false
}

// sayGoodbye sends what is pending and then a GOAWAY, as far as that can be
// done within the farewell. Bulk gets no more turns meanwhile, nor afterwards:
// the caller is to end the session.
func (ses *Session) sayGoodbye(cause error, code GoAwayCode, text string) {
	end := time.Now().Add(farewell)
	ses.mu.Lock()
	if ses.ending == nil {
		ses.ending = cause // before the deadline, at which a stuck write fails
	}
	ses.mu.Unlock()
	_ = ses.out.conn.SetWriteDeadline(end)
	defer time.AfterFunc(farewell, ses.wakeIdle).Stop()
	if !ses.takeLastTurn(end) {
		return
	}
	goAway := appendGoAway(nil, code, text)
	for last := false; !last && time.Now().Before(end); {
		var frames []byte
		if frames, last = ses.lastFrames(goAway); ses.out.send(frames) != nil {
			return
		}
	}
}

// takeLastTurn waits for the connection until end, while the session lives.
func (ses *Session) takeLastTurn(end time.Time) bool {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for ses.err == nil && time.Now().Before(end) {
		if ses.queue.take() {
			return true
		}
		ses.idleCond.Wait()
	}
	return false
}

// lastFrames returns what is pending, or goAway once nothing is.
func (ses *Session) lastFrames(goAway []byte) (frames []byte, last bool) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	if ses.err != nil || !ses.queue.pending() {
		return goAway, true
	}
	return ses.popFramesLocked(nil), false
}
