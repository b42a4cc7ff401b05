package link

import (
	"sync"
	"time"

	"konnectivity/tunnel"
)

// turnBytes is what one turn of a stream may send before the next stream's:
// four full records.
const turnBytes = 4 * maxPayload

// sender is the sending side of a link: who may write to the connection, and who
// writes what nobody waits for. One at a time has the turn, and as long as the
// link lasts, what is pending has somebody who sends it.
//
// It knows no more of a stream than its sendHalf. It has no lock of its own: mu,
// the link's, guards all but the frameWriter.
type sender struct {
	frameWriter // belongs to whoever has the turn

	mu   *sync.Mutex
	wg   *sync.WaitGroup // joins the flusher
	sent func(n int)     // counts payload; called with mu held
	fail func(error)     // ends the link, of which a write has failed; likewise

	queue   sendQueue
	ending  error     // why the link is about to end: nobody gets another turn
	over    bool      // it has ended
	pausing bool      // somebody waits until the peer was told more
	free    sync.Cond // nobody sends, the peer was told, or it is over

	wantFlush bool
	flushing  bool // the flusher runs
	busy      bool // there are streams, or something was sent of one since the last look
	flushCond sync.Cond
}

// push arranges for what is in h's outbox to be sent, without waiting for it.
func (s *sender) push(h *sendHalf) {
	if !s.over {
		s.busy = true
		s.queue.push(h)
		s.wakeFlusherLocked()
	}
}

// pushIntro does so for OPEN or OPENED.
func (s *sender) pushIntro(h *sendHalf, typ frameType, payload []byte) {
	h.out.introType, h.out.intro = typ, payload
	s.push(h)
}

// tell does so for a frame of the link. The mutex is not held.
func (s *sender) tell(frame []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.queue.pushControl(frame)
		s.wakeFlusherLocked()
	}
}

// writeSome sends a part of p by copying it.
func (s *sender) writeSome(h *sendHalf, p []byte) (int, error) {
	n := min(len(p), tunnel.ChunkSize)
	batch := [1]tunnel.Chunk{tunnel.CopyChunk(p[:n])}
	defer batch[0].Release()
	for batch[0].Len() > 0 {
		if err := s.writeChunks(h, batch[:]); err != nil {
			return n - batch[0].Len(), err
		}
	}
	return n, nil
}

// writeChunks sends a part of src, as much as credit and one turn allow, and
// narrows the chunks by it. The first chunk must not be empty.
func (s *sender) writeChunks(h *sendHalf, src []tunnel.Chunk) error {
	first, n, err := s.awaitTurn(h, src)
	if err != nil || n == 0 {
		return err
	}
	frames, err := s.writeTurn(first, h.id, src, n)
	if err == nil {
		err = s.uncork()
	}
	s.endTurn(frames, err)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.writable() // what the stream's holder is told is the loss
}

// awaitTurn waits for credit and for the connection, and returns how much of
// src may be written and what goes before it. A small message is left with
// whoever is sending instead: then it is gone, and n is 0.
func (s *sender) awaitTurn(h *sendHalf, src []tunnel.Chunk) (first []byte, n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := h.awaitCredit(); err != nil {
		return nil, 0, err
	}
	for _, c := range src {
		n += c.Len()
	}
	if s.leaveSmallLocked(h, src, n) {
		return nil, 0, nil
	}
	if err := s.takeTurnLocked(h); err != nil {
		return nil, 0, err
	}
	n = min(n, turnBytes, h.credit.available())
	s.spendLocked(h, n)
	return s.popFramesLocked(h), n, nil
}

// leaveSmallLocked leaves a small message with whoever is sending and says whether
// it did.
func (s *sender) leaveSmallLocked(h *sendHalf, src []tunnel.Chunk, size int) bool {
	if !s.queue.taken || size > h.credit.available() || !s.queue.pushMessage(h, size, src) {
		return false
	}
	for i := range src {
		src[i] = src[i].Slice(src[i].Len(), src[i].Len())
	}
	s.spendLocked(h, size)
	return true
}

// tryWrite sends all of c or nothing, and blocks on nobody.
func (s *sender) tryWrite(h *sendHalf, c tunnel.Chunk) int {
	n := c.Len()
	first, ok := s.tryTurn(h, n)
	if !ok {
		return 0
	}
	frames, err := s.writeTurn(first, h.id, []tunnel.Chunk{c}, n)
	s.passTurn(frames, err, false) // what is pending is left to the flusher
	return n
}

// tryTurn takes the connection for n bytes of h if nothing would have to wait.
func (s *sender) tryTurn(h *sendHalf, n int) (first []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n == 0 || n > turnBytes || !s.takesNowLocked() ||
		h.writing || h.writable() != nil || h.credit.available() < n {
		return nil, false
	}
	s.queue.take()
	s.spendLocked(h, n)
	return s.popFramesLocked(h), true
}

// takesNowLocked says whether something can be written without waiting for
// anybody.
func (s *sender) takesNowLocked() bool {
	if s.queue.taken || s.over || s.ending != nil {
		return false
	}
	takes, left := s.takesNow()
	s.noteFlushLocked(left)
	return takes
}

// flush has the kernel take what it takes at once of what tryWrite sent.
func (s *sender) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteFlushLocked(s.tryFlush())
}

// noteFlushLocked leaves what the kernel has not taken to the flusher.
func (s *sender) noteFlushLocked(left bool) {
	if left {
		s.queue.corked = true
		s.wakeFlusherLocked()
	}
}

// spendLocked counts n bytes as sent by h.
func (s *sender) spendLocked(h *sendHalf, n int) {
	h.credit.spend(n)
	s.sent(n)
}

// popFramesLocked gathers what goes next, before what own sends in its turn. The
// caller has the turn.
func (s *sender) popFramesLocked(own *sendHalf) []byte {
	frames := s.keep(s.queue.pop(s.gather(), own))
	if s.pausing && !s.queue.behind() {
		s.free.Broadcast()
	}
	return frames
}

// awaitToldUnlocked waits while a peer that asks for more leaves too many answers
// unread, or until the link has ended. Nothing but the connection is waited for, which
// §6 bounds. The mutex is released meanwhile, and before is called first.
func (s *sender) awaitToldUnlocked(before func()) {
	if !s.queue.behind() {
		return
	}
	s.mu.Unlock()
	before()
	s.mu.Lock()
	s.pausing = true
	for s.queue.behind() && !s.over {
		s.free.Wait()
	}
	s.pausing = false
}

// takeTurnLocked waits until the connection is h's to write to, or returns why it
// will not be.
func (s *sender) takeTurnLocked(h *sendHalf) error {
	if !s.over && s.ending == nil && s.queue.take() {
		return nil
	}
	s.queue.pushTurn(h)
	for !h.turn {
		if err := h.writable(); err != nil {
			s.queue.dropTurn(h)
			return err
		}
		h.cond.Wait()
	}
	h.turn = false
	err := h.writable()
	if err != nil && !s.wakeNextLocked() {
		s.freeTurnLocked()
	}
	return err
}

// endTurn ends a turn with its outcome, and passes the connection on. With
// nobody in line, whoever leaves sends what is pending, up to a bound; the
// rest, if more keeps coming, is left to the flusher.
func (s *sender) endTurn(frames int, err error) {
	const rounds = 4
	for round := 0; ; round++ {
		pending, mine := s.passTurn(frames, err, round < rounds)
		if !mine {
			return
		}
		frames, err = 0, s.send(pending)
	}
}

// passTurn is one step of endTurn: it returns what the caller has to send, or
// that the connection is no longer the caller's.
func (s *sender) passTurn(frames int, err error, goOn bool) (pending []byte, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over { // or else they were summed up
		s.queue.dataFrames += uint64(frames)
	}
	if err != nil {
		s.fail(err)
	}
	switch {
	case s.wakeNextLocked():
	case goOn && !s.over && s.queue.pending():
		return s.popFramesLocked(nil), true
	default:
		s.freeTurnLocked()
	}
	return nil, false
}

// wakeNextLocked gives the connection to the next in line, if there is one.
// Nobody is while the link says goodbye.
func (s *sender) wakeNextLocked() bool {
	if s.ending != nil {
		return false
	}
	next := s.queue.popTurn()
	if next == nil {
		return false
	}
	next.turn = true
	next.cond.Broadcast()
	return true
}

func (s *sender) freeTurnLocked() {
	s.queue.taken = false
	s.free.Broadcast() // for sayGoodbye
	if s.queue.pending() {
		s.wakeFlusherLocked()
	}
}

// wakeFlusherLocked has what is pending sent without the caller waiting for it: a
// dial has a context to obey, Close must not hang on a peer that reads nothing,
// and a read loop may be the caller. The flusher runs once whoever has something
// to do now has done it, so what many connections open and close at once goes
// in one record, and only its stack has to hold TLS.
func (s *sender) wakeFlusherLocked() {
	if s.queue.taken || s.wantFlush || s.over {
		return
	}
	s.wantFlush = true
	if s.flushing {
		s.flushCond.Signal()
		return
	}
	s.flushing = true
	s.wg.Go(s.flushLoop)
}

// flushLoop sends for those who must not block.
func (s *sender) flushLoop() {
	for s.awaitFlush() {
		s.endTurn(0, nil)
	}
}

// awaitFlush waits until there is something to flush and nobody else to do so,
// and takes the connection for it; false means that the flusher is to end: the
// link has, or there is no stream, and was none for a time, that could want it
// soon.
func (s *sender) awaitFlush() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.over {
		switch {
		case s.wantFlush:
			s.wantFlush = false
			if s.queue.pending() && s.queue.take() {
				return true
			}
		case !s.busy:
			s.flushing = false
			return false
		default:
			s.flushCond.Wait()
		}
	}
	return false
}

// stopLocked ends it all; those who wait for a turn leave by themselves.
func (s *sender) stopLocked() {
	s.over = true
	s.queue.clear()
	s.wg.Go(s.close) // which may block, and so is not done under the mutex
	s.flushCond.Broadcast()
	s.free.Broadcast()
}

// sayGoodbye sends what is pending and then a GOAWAY, as far as that can be
// done within the farewell. Bulk gets no more turns meanwhile, nor afterwards:
// the caller is to end the link.
func (s *sender) sayGoodbye(cause error, code GoAwayCode, text string) {
	end := time.Now().Add(farewell)
	s.mu.Lock()
	if s.ending == nil {
		s.ending = cause // before the deadline, at which a stuck write fails
	}
	s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(end)
	defer time.AfterFunc(farewell, waker(&s.free)).Stop()
	if !s.takeLastTurn(end) {
		return
	}
	goAway := appendGoAway(nil, code, text)
	for last := false; !last && time.Now().Before(end); {
		var frames []byte
		if frames, last = s.lastFrames(goAway); s.send(frames) != nil {
			return
		}
	}
}

// takeLastTurn waits for the connection until end, while the link lives.
func (s *sender) takeLastTurn(end time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for !s.over && time.Now().Before(end) {
		if s.queue.take() {
			return true
		}
		s.free.Wait()
	}
	return false
}

// lastFrames returns what is pending, or goAway once nothing is.
func (s *sender) lastFrames(goAway []byte) (frames []byte, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || !s.queue.pending() {
		return goAway, true
	}
	return s.popFramesLocked(nil), false
}

// waker returns what wakes all who wait for c.
func waker(c *sync.Cond) func() {
	return func() {
		c.L.Lock()
		defer c.L.Unlock()
		c.Broadcast()
	}
}
