package link

import (
	"konnectivity/tunnel"
)

const (
	// smallMessage is the most that is copied and left with whoever is
	// sending, instead of waiting for a turn: a keystroke, a request, a
	// response header. Copying it costs less than a goroutine's wake-up.
	smallMessage = 4 << 10

	// maxPendingData bounds what one stream may leave that way; it fits one frame.
	maxPendingData = 2 * smallMessage

	// maxLeft bounds it for a link, for the time that the kernel takes no
	// more. Beyond it small messages wait like large ones.
	maxLeft = 256 << 10

	// turnBytes is what one turn of a stream may send before the next
	// stream's: four full records.
	turnBytes = 4 * maxPayload

	// youngBytes is how long a stream counts as new and goes before bulk.
	youngBytes = 256 << 10

	// scratchSize is where small frames of many streams are put together;
	// what does not fit waits for the next round.
	scratchSize = 4 * tunnel.RecordSize
)

// pending is what a stream has to send that needs no credit wait: control
// frames, and small messages left behind. Each kind has one place, so what
// waits for a blocked connection is bounded by the number of streams.
type pending struct {
	queued    bool // the stream is in Session.urgent
	open      []byte
	opened    []byte
	credit    uint64 // 0: none
	data      []byte
	fin       bool
	reset     bool
	resetCode tunnel.Code
}

// appendTo encodes and clears what is pending, in the order of its life.
func (p *pending) appendTo(b []byte, id uint64) []byte {
	if p.open != nil {
		b = appendFrame(b, frameOpen, 0, id, p.open)
	}
	if p.opened != nil {
		b = appendFrame(b, frameOpened, 0, id, p.opened)
	}
	if p.credit != 0 {
		b = appendCredit(b, id, p.credit)
	}
	if len(p.data) > 0 || p.fin {
		var flags uint8
		if p.fin {
			flags = flagFin
		}
		b = appendFrame(b, frameData, flags, id, p.data)
	}
	if p.reset {
		b = appendReset(b, id, p.resetCode)
	}
	*p = pending{}
	return b
}

// discardData forgets payload and FIN that a reset overtakes.
func (p *pending) discardData(ses *Session) {
	ses.left -= len(p.data)
	p.data, p.fin, p.credit = nil, false, 0
}

// queuePending has st's pending frames sent by the next one who sends.
func (ses *Session) queuePending(st *Stream) {
	if !st.pending.queued && ses.err == nil {
		st.pending.queued = true
		ses.urgent = append(ses.urgent, st)
	}
}

// turns is a first-in, first-out line of streams that wait to write.
type turns struct{ line []*Stream }

func (t *turns) push(st *Stream) { t.line = append(t.line, st) }

func (t *turns) pop() *Stream {
	if len(t.line) == 0 {
		return nil
	}
	st := t.line[0]
	t.line[0] = nil
	t.line = t.line[1:]
	if len(t.line) == 0 {
		t.line = nil
	}
	return st
}

func (t *turns) remove(st *Stream) {
	for i, other := range t.line {
		if other == st {
			t.line = append(t.line[:i], t.line[i+1:]...)
			return
		}
	}
}

// takeTurn waits until the connection is st's to write to, or returns why it
// will not be. New streams go before bulk, each kind in order of arrival.
func (ses *Session) takeTurn(st *Stream) error {
	if !ses.busy && ses.err == nil && ses.ending == nil {
		ses.busy = true
		return nil
	}
	line := &ses.bulk
	if st.send.sent < youngBytes {
		line = &ses.young
	}
	line.push(st)
	for !st.turn {
		if err := st.writable(); err != nil {
			line.remove(st)
			return err
		}
		st.writeCond.Wait()
	}
	st.turn = false
	if err := st.writable(); err != nil {
		ses.passTurn()
		return err
	}
	return nil
}

// passTurn gives the connection to the next in line. With nobody in line, what
// is pending is the leaving one's to send, up to a bound; the rest, if more
// keeps coming, is the flusher's.
func (ses *Session) passTurn() {
	const rounds = 4
	for range rounds {
		if next := ses.nextTurn(); next != nil {
			next.turn = true
			next.writeCond.Broadcast()
			return
		}
		if !ses.hasPending() || ses.err != nil {
			break
		}
		ses.sendPending()
	}
	ses.busy = false
	ses.idleCond.Broadcast() // for CloseWith
	if ses.hasPending() {
		ses.wakeFlusher()
	}
}

// nextTurn is the stream whose turn it is, or nil.
func (ses *Session) nextTurn() *Stream {
	if ses.ending != nil {
		return nil
	}
	if next := ses.young.pop(); next != nil {
		return next
	}
	return ses.bulk.pop()
}

func (ses *Session) hasPending() bool {
	return len(ses.urgent) > 0 || len(ses.control) > 0 || ses.pong || ses.ping || ses.leftover
}

// collect encodes what is pending into the scratch buffer: first what own, if
// any, left behind, since it is about to write what comes after it, then as
// much of the rest as fits. The caller has the turn, which guards the buffer.
func (ses *Session) collect(own *Stream) []byte {
	b := append(ses.scratch[:0], ses.control...)
	ses.control = nil
	ses.leftover = false // whoever collects flushes
	if ses.pong {
		ses.pong = false
		b = appendPing(b, flagAck, ses.pongValue)
	}
	if ses.ping {
		ses.ping = false
		b = appendPing(b, 0, ses.pingValue)
	}
	if own != nil {
		queued := own.pending.queued
		ses.leave(&own.pending)
		b = own.pending.appendTo(b, own.id)
		own.pending.queued = queued // its place in the line stays
	}
	n := 0
	for n < len(ses.urgent) && len(b) < scratchSize-maxPayload {
		st := ses.urgent[n]
		ses.urgent[n] = nil
		ses.leave(&st.pending)
		b = st.pending.appendTo(b, st.id)
		n++
	}
	ses.urgent = ses.urgent[n:]
	if len(ses.urgent) == 0 {
		ses.urgent = nil
	}
	ses.scratch = b[:0]
	return b
}

// leave notes that what is pending goes out.
func (ses *Session) leave(p *pending) {
	ses.left -= len(p.data)
	if len(p.data) > 0 || p.fin {
		ses.dataSent++
	}
}

// sendPending writes what is pending. The caller has the turn; the mutex is
// released while writing.
func (ses *Session) sendPending() {
	b := ses.collect(nil)
	ses.mu.Unlock()
	err := ses.write(b)
	if err == nil {
		err = ses.uncork()
	}
	ses.mu.Lock()
	if err != nil {
		ses.failLocked(err)
	}
}

func (ses *Session) write(b []byte) error {
	if len(b) == 0 {
		return nil
	}
	_, err := ses.conn.Write(b)
	ses.writes.Add(1)
	return err
}

func (ses *Session) uncork() error {
	if ses.cork == nil {
		return nil
	}
	return ses.cork.flush()
}

// flushPending sends what is pending and waits for it, unless somebody is
// sending already.
func (ses *Session) flushPending() {
	if ses.busy || ses.err != nil || !ses.hasPending() {
		return
	}
	ses.busy = true
	ses.sendPending()
	ses.passTurn()
}

// wakeFlusher has what is pending sent without the caller waiting for it: a
// dial has a context to obey, Close must not hang on a peer that reads nothing,
// and a read loop may be the caller. The flusher runs once whoever has something
// to do now has done it, so what many connections open and close at once goes
// in one record, and only its stack has to hold TLS.
func (ses *Session) wakeFlusher() {
	if !ses.busy && !ses.wantFlush {
		ses.wantFlush = true
		ses.flushCond.Signal()
	}
}

// flushLoop sends for those who must not block.
func (ses *Session) flushLoop() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for ses.err == nil {
		if !ses.wantFlush {
			ses.flushCond.Wait()
			continue
		}
		ses.wantFlush = false
		ses.flushPending()
	}
}

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
	ses := st.ses
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for {
		if err := st.writable(); err != nil {
			return err
		}
		if st.send.available() > 0 {
			break
		}
		st.writeCond.Wait()
	}
	total := 0
	for _, c := range src {
		total += c.Len()
	}
	if st.leaveSmall(src, total) {
		return nil
	}
	if err := ses.takeTurn(st); err != nil {
		return err
	}
	total = min(total, turnBytes, st.send.available())
	st.send.spend(total)
	ses.sent += uint64(total)
	first := ses.collect(st)

	ses.mu.Unlock()
	frames, err := 0, ses.write(first)
	if err == nil {
		frames, err = st.writeFrames(src, total)
	}
	if err == nil {
		err = ses.uncork()
	}
	ses.mu.Lock()
	ses.dataSent += uint64(frames)

	if err != nil {
		ses.failLocked(err)
		err = st.writable() // what the stream's holder is told is the loss
	}
	ses.passTurn()
	return err
}

// leaveSmall leaves a small message with whoever is sending and says whether
// it did.
func (st *Stream) leaveSmall(src []tunnel.Chunk, total int) bool {
	ses := st.ses
	if !ses.busy || total > smallMessage || total > st.send.available() ||
		len(st.pending.data)+total > maxPendingData || ses.left+total > maxLeft {
		return false
	}
	for i := range src {
		st.pending.data = append(st.pending.data, src[i].Bytes()...)
		src[i] = src[i].Slice(src[i].Len(), src[i].Len())
	}
	st.send.spend(total)
	ses.sent += uint64(total)
	ses.left += total
	ses.queuePending(st)
	return true
}

// writeFrames writes total bytes of src as DATA frames and narrows src by
// them. A frame's header goes right before its payload: into the chunk's own
// headroom for the first, over bytes that were sent already for the next. It
// returns how many were written.
func (st *Stream) writeFrames(src []tunnel.Chunk, total int) (frames int, err error) {
	for i := 0; total > 0; {
		c := src[i]
		n := min(c.Len(), maxPayload, total)
		if n == 0 {
			i++
			continue
		}
		if err := st.writeFrame(c.Slice(0, n)); err != nil {
			return frames, err
		}
		frames++
		src[i] = c.Slice(n, c.Len())
		total -= n
	}
	return frames, nil
}

func (st *Stream) writeFrame(c tunnel.Chunk) error {
	h := header{typ: frameData, length: c.Len(), stream: st.id}
	if frame, ok := c.WithHeader(headerSize); ok {
		h.put(frame)
		return st.ses.write(frame)
	}
	b := appendFrame(st.ses.scratch[:0], frameData, 0, st.id, c.Bytes())
	st.ses.scratch = b[:0]
	return st.ses.write(b)
}
