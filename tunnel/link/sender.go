package link

import (
	"sync"
	"time"

	"konnectivity/tunnel"
)

// turnBytes bounds what a stream sends in one turn, before the next stream's: four full
// records.
const turnBytes = 4 * maxPayload

// sender is the sending side of a link. It decides who writes to the connection, which
// is one goroutine at a time (see writerState), and runs a flusher for frames that no
// goroutine waits to send.
//
// Of a stream it knows only the sendHalf. It has no lock of its own.
type sender struct {
	// Immutable.

	mu   *sync.Mutex // the link's, which guards the last group
	wg   *sync.WaitGroup
	sent func(n int) // counts payload; called with mu held
	fail func(error) // ends the link, since a write has failed; called with mu held

	// Owned by the writer.

	frameWriter

	// Guarded by mu.

	queue  sendQueue
	writer writerState
	cause  error     // why the link closes, from writerDraining on
	freed  sync.Cond // the writer has changed, or the queue is no longer backlogged

	flusher   flusherState
	flushes   bool // streams exist, or something was queued for one since the last look: the flusher stays
	flushCond sync.Cond
}

// flusherState is what becomes of the flusher, a goroutine that sends what others must
// not block for.
type flusherState uint8

const (
	flusherGone   flusherState = iota
	flusherStays               // it runs, or waits to be called
	flusherCalled              // it is to look at the queue
)

// push queues the frames in h's outbox. It does not wait until they are sent.
func (s *sender) push(h *sendHalf) {
	if s.writer != writerDead {
		s.flushes = true
		s.queue.push(h)
		s.callFlusherLocked()
	}
}

// pushIntro is push for OPEN or OPENED.
func (s *sender) pushIntro(h *sendHalf, typ frameType, payload []byte) {
	h.out.introType, h.out.intro = typ, payload
	s.push(h)
}

// pushControl is push for a frame of the link. It takes the mutex itself.
func (s *sender) pushControl(kind control, frame []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer != writerDead {
		s.queue.pushControl(kind, frame)
		s.callFlusherLocked()
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

// writeChunks sends as much of src as credit and one turn allow, and narrows the chunks
// by it. The first chunk must not be empty.
func (s *sender) writeChunks(h *sendHalf, src []tunnel.Chunk) error {
	first, n, err := s.awaitTurn(h, src)
	if err != nil || n == 0 {
		return err
	}
	frames, err := s.writeTurn(first, h.id, src, n)
	if err == nil {
		err = s.flushBuffer()
	}
	s.endTurn(frames, err)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.writable() // what the stream's holder is told is the loss
}

// awaitTurn waits for credit and for the turn. It returns n, how many bytes of src may
// be written, and the frames that go before them. It returns n = 0 for a small message,
// which it has queued for the present writer.
func (s *sender) awaitTurn(h *sendHalf, src []tunnel.Chunk) (first []byte, n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := h.awaitCredit(); err != nil {
		return nil, 0, err
	}
	n = tunnel.LenAll(src)
	if s.queueMessageLocked(h, src, n) {
		return nil, 0, nil
	}
	if err := s.takeTurnLocked(h); err != nil {
		return nil, 0, err
	}
	n = min(n, turnBytes, h.credit.available())
	s.spendLocked(h, n)
	return s.popFramesLocked(h), n, nil
}

// queueMessageLocked queues a small message for the present writer, if there is one,
// and returns whether it did.
func (s *sender) queueMessageLocked(h *sendHalf, src []tunnel.Chunk, size int) bool {
	if !s.writer.writing() || size > h.credit.available() || !s.queue.pushMessage(h, size, src) {
		return false
	}
	for i := range src {
		src[i] = src[i].Slice(src[i].Len(), src[i].Len())
	}
	s.spendLocked(h, size)
	return true
}

// tryWrite sends all of c or nothing, and does not block.
func (s *sender) tryWrite(h *sendHalf, c tunnel.Chunk) int {
	n := c.Len()
	first, ok := s.tryTurn(h, n)
	if !ok {
		return 0
	}
	frames, err := s.writeTurn(first, h.id, []tunnel.Chunk{c}, n)
	s.passTurn(frames, err, false) // the flusher sends pending frames
	return n
}

// tryTurn takes the turn for n bytes of h, if nothing has to be waited for.
func (s *sender) tryTurn(h *sendHalf, n int) (first []byte, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n == 0 || n > turnBytes || !s.hasRoomLocked() ||
		h.writing || h.writable() != nil || h.credit.available() < n {
		return nil, false
	}
	s.stepLocked(takesTurn)
	s.spendLocked(h, n)
	return s.popFramesLocked(h), true
}

// hasRoomLocked reports whether the turn can be had, and a write does not block.
func (s *sender) hasRoomLocked() bool {
	if s.writer != writerFree {
		return false
	}
	room, unsent := s.hasRoom()
	s.noteUnsentLocked(unsent)
	return room
}

// flush passes to the kernel what it takes at once of what tryWrite has written.
func (s *sender) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteUnsentLocked(s.tryFlush())
}

// noteUnsentLocked leaves what the kernel did not take to the flusher.
func (s *sender) noteUnsentLocked(unsent bool) {
	if unsent {
		s.queue.unsent = true
		s.callFlusherLocked()
	}
}

// spendLocked counts n bytes as sent by h.
func (s *sender) spendLocked(h *sendHalf, n int) {
	h.credit.spend(n)
	s.sent(n)
}

// popFramesLocked returns the frames that go next, before what own writes in its turn.
// Only the writer calls it.
func (s *sender) popFramesLocked(own *sendHalf) []byte {
	frames := s.keepScratch(s.queue.pop(s.scratchBuffer(), own))
	if !s.queue.backlogged() {
		s.freed.Broadcast() // for awaitBacklogUnlocked
	}
	return frames
}

// awaitBacklogUnlocked waits while the peer asks for more and leaves too many answers
// unread, or until the link has ended; §6 bounds that. It releases the mutex meanwhile,
// and calls before first.
func (s *sender) awaitBacklogUnlocked(before func()) {
	if !s.queue.backlogged() {
		return
	}
	s.mu.Unlock()
	before()
	s.mu.Lock()
	for s.queue.backlogged() && s.writer != writerDead {
		s.freed.Wait()
	}
}

// stepLocked takes the writer to the state that e leads to.
func (s *sender) stepLocked(e writerEvent) { s.writer = s.writer.after(e) }

// takeTurnLocked waits until the turn is h's, or returns why it never will be.
func (s *sender) takeTurnLocked(h *sendHalf) error {
	if s.writer == writerFree {
		s.stepLocked(takesTurn)
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
	if err != nil && !s.passToNextLocked() {
		s.freeTurnLocked()
	}
	return err
}

// endTurn ends a turn with outcome err. Unless another stream waits for the turn, it first
// sends pending frames, in a few rounds; the flusher sends those queued meanwhile.
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

// passTurn is one step of endTurn. It returns what the caller is to send, or that the
// turn is no longer the caller's.
func (s *sender) passTurn(frames int, err error, goOn bool) (pending []byte, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer != writerDead { // or else they were summed up
		s.queue.dataFrames += uint64(frames)
	}
	if err != nil {
		s.fail(cutOff(err))
	}
	switch {
	case s.passToNextLocked():
	case goOn && s.writer != writerDead && s.queue.pending():
		return s.popFramesLocked(nil), true
	default:
		s.freeTurnLocked()
	}
	return nil, false
}

// passToNextLocked gives the turn to the stream that has waited longest, if there is
// one and the link is not closing.
func (s *sender) passToNextLocked() bool {
	if s.writer != writerTaken {
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
	s.stepLocked(freesTurn)
	s.freed.Broadcast() // for sayGoodbye
	if s.queue.pending() {
		s.callFlusherLocked()
	}
}

// callFlusherLocked calls the flusher for pending frames, unless a writer will send them.
// It is for callers that must not block: a dial obeys its context, Close ends although the
// peer reads nothing, and the read loop never writes. The flusher runs once its callers
// are done, so what many connections open and close at once goes into one record, and
// only the flusher's stack has to hold TLS.
func (s *sender) callFlusherLocked() {
	if s.writer != writerFree || s.flusher == flusherCalled {
		return
	}
	gone := s.flusher == flusherGone
	s.flusher = flusherCalled
	if gone {
		s.wg.Go(s.flushLoop)
	} else {
		s.flushCond.Signal()
	}
}

func (s *sender) flushLoop() {
	for s.awaitFlush() {
		s.endTurn(0, nil)
	}
}

// awaitFlush waits until something is pending and takes the turn for it. It returns
// false to end the flusher: the link has ended, or has had no stream for a time.
func (s *sender) awaitFlush() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.writer != writerDead {
		switch {
		case s.flusher == flusherCalled:
			s.flusher = flusherStays
			if s.queue.pending() && s.writer == writerFree {
				s.stepLocked(takesTurn)
				return true
			}
		case !s.flushes:
			s.flusher = flusherGone
			return false
		default:
			s.flushCond.Wait()
		}
	}
	return false
}

// stopLocked ends the sender. Streams that wait for a turn leave by themselves.
func (s *sender) stopLocked() {
	s.stepLocked(dies)
	s.queue.clear()
	s.wg.Go(s.close) // which may block, and so is not done under the mutex
	s.flushCond.Broadcast()
	s.freed.Broadcast()
}

// sayGoodbye sends pending frames and then GOAWAY, within the farewell. Streams get no
// turns from then on: the caller is to end the link, for cause.
func (s *sender) sayGoodbye(cause error, code GoAwayCode, text string) {
	end := time.Now().Add(farewell)
	s.mu.Lock()
	if s.cause == nil {
		s.cause = cause // before the deadline, at which a stuck write fails
	}
	s.stepLocked(closes)
	s.mu.Unlock()
	_ = s.conn.SetWriteDeadline(end)
	defer time.AfterFunc(farewell, waker(&s.freed)).Stop()
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

// takeLastTurn waits for the last turn until end, while the link lives.
func (s *sender) takeLastTurn(end time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.writer != writerDead && time.Now().Before(end) {
		if s.writer == writerClosing {
			s.stepLocked(takesTurn)
			return true
		}
		s.freed.Wait()
	}
	return false
}

// lastFrames returns the frames that are pending, or goAway once none are.
func (s *sender) lastFrames(goAway []byte) (frames []byte, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.writer == writerDead || !s.queue.pending() {
		return goAway, true
	}
	return s.popFramesLocked(nil), false
}

// waker returns a function that wakes all goroutines waiting for c.
func waker(c *sync.Cond) func() {
	return func() {
		c.L.Lock()
		defer c.L.Unlock()
		c.Broadcast()
	}
}
