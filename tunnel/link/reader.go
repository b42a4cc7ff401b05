package link

import (
	"encoding/binary"
	"runtime"
	"time"

	"konnectivity/tunnel"
)

const (
	// shareMin is the payload from which a stream keeps a reference to the
	// record it came in instead of a copy, so that unread payload pins
	// little more than itself: at most twice its size in records, and four
	// times where a peer alternates large frames with tiny ones.
	shareMin = tunnel.RecordSize / 2
)

// flushAfter is how much is read before those who were given something are
// flushed, even while there is more to read: a keystroke must not wait for the
// end of another stream's bulk. A bulk stream's own cork is full by then.
const flushAfter = corkSize

// violation is a breach of the protocol that ends the link.
type violation string

func (v violation) Error() string { return "protocol violation: " + string(v) }

// readLoop reads the connection until it fails. It never writes and never
// waits for a stream.
func (ses *Session) readLoop() error {
	r := &frameReader{ses: ses, buf: tunnel.NewChunk(tunnel.RecordSize)}
	defer func() { r.buf.Release() }()
	defer ses.flushDelivered()
	unflushed := 0
	for {
		// The cork flushes, too, when there is nothing more to read.
		if ses.out.cork == nil || unflushed >= flushAfter {
			ses.flushDelivered()
			unflushed = 0
		}
		n, err := ses.out.conn.Read(r.buf.Bytes()[r.have:])
		r.have += n
		unflushed += n
		if perr := r.parse(); perr != nil {
			return perr
		}
		if err != nil {
			return err
		}
		r.makeRoom()
		if r.small {
			// On a busy machine the goroutine that waits for a small message
			// would else run only when this loop has nothing more to decrypt.
			r.small = false
			runtime.Gosched()
		}
	}
}

// frameReader cuts what was read into frames. DATA is handed on as it comes;
// other frames are gathered first, and always fit the buffer.
type frameReader struct {
	ses       *Session
	buf       tunnel.Chunk
	pos, have int  // unparsed bytes of buf
	shared    bool // a stream refers to buf
	small     bool // a stream got a small message

	data header // the DATA frame under way
	left int    // of its payload, yet to come
}

func (r *frameReader) parse() error {
	r.ses.mu.Lock()
	defer r.ses.mu.Unlock()
	for r.have > r.pos {
		if r.ses.err != nil {
			return r.ses.err // nothing may begin on a session that has ended
		}
		more, err := r.next()
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// next handles one frame or part of one; false means that it needs more bytes.
func (r *frameReader) next() (bool, error) {
	b := r.buf.Bytes()[r.pos:r.have]
	if r.left > 0 {
		return len(b) > 0, r.payload(min(r.left, len(b)), 0)
	}
	if len(b) < headerSize {
		return false, nil
	}
	h, err := parseHeader(b)
	if err != nil {
		return false, violation(err.Error())
	}
	if h.typ == frameData {
		r.pos += headerSize
		r.data, r.left = h, h.length
		r.ses.count.dataReceived++
		return true, r.payload(min(h.length, len(b)-headerSize), headerSize)
	}
	if len(b) < headerSize+h.length {
		return false, nil
	}
	r.pos += headerSize + h.length
	r.ses.frameSeen()
	return true, r.ses.handle(h, b[headerSize:headerSize+h.length])
}

// payload hands n bytes of the DATA frame under way to its stream. head is how
// many bytes before them are free for another header.
func (r *frameReader) payload(n, head int) error {
	from := r.pos
	if from == 0 {
		head = headerSize // the block's own headroom
	}
	r.pos += n
	r.left -= n
	if r.left == 0 {
		r.ses.frameSeen()
	}
	fin := r.left == 0 && r.data.flags&flagFin != 0
	if n == 0 && !fin {
		return r.ses.checkData(r.data)
	}
	return r.handleData(r.buf.View(from, from+n, head), fin)
}

// makeRoom prepares the buffer for the next read: what is unparsed moves to
// its start, or to a new one where streams refer to this.
func (r *frameReader) makeRoom() {
	rest := r.buf.Bytes()[r.pos:r.have]
	if r.shared {
		next := tunnel.NewChunk(tunnel.RecordSize)
		copy(next.Bytes(), rest)
		r.buf.Release()
		r.buf, r.shared = next, false
	} else {
		copy(r.buf.Bytes(), rest)
	}
	r.pos, r.have = 0, len(rest)
}

// frameSeen notes that the peer is alive.
func (ses *Session) frameSeen() { ses.alive.heard = time.Now() }

// handle takes a frame that is not DATA.
func (ses *Session) handle(h header, payload []byte) error {
	switch h.typ {
	case framePing, frameGoAway, frameInfo, frameHello:
		if h.stream != 0 {
			return violation("frame of the link on a stream")
		}
	case frameOpen, frameOpened, frameCredit, frameReset:
		if h.stream == 0 {
			return violation("frame of a stream on stream 0")
		}
	}
	switch h.typ {
	case frameHello:
		return violation("second HELLO")
	case framePing:
		return ses.handlePing(h, payload)
	case frameGoAway:
		return ses.handleGoAway(payload)
	case frameInfo:
		return ses.handleInfo(payload)
	case frameOpen:
		return ses.handleOpen(h.stream, payload)
	case frameOpened:
		return ses.handleOpened(h.stream, payload)
	case frameCredit:
		return ses.handleCredit(h.stream, payload)
	case frameReset:
		return ses.handleReset(h.stream, payload)
	default:
		return nil // §2: unknown types are skipped
	}
}

var errShort = violation("payload too short for its type")

func (ses *Session) handlePing(h header, payload []byte) error {
	if len(payload) < 8 {
		return errShort
	}
	value := binary.BigEndian.Uint64(payload)
	if h.flags&flagAck == 0 {
		ses.queue.pushPong(value)
		ses.wakeFlusherLocked()
		return nil
	}
	ses.alive.answered(value, time.Now())
	return nil
}

func (ses *Session) handleGoAway(payload []byte) error {
	if len(payload) < 2 {
		return errShort
	}
	code := GoAwayCode(binary.BigEndian.Uint16(payload))
	if code == GoAwayDrain {
		ses.drainOnce.Do(func() { close(ses.draining) })
		return nil
	}
	return &GoAwayError{Code: code, Text: cut(string(payload[2:]))}
}

func (ses *Session) handleInfo(payload []byte) error {
	info := Hello{}
	if err := info.decode(payload); err != nil {
		return violation("INFO: " + err.Error())
	}
	if info.ServerCount > 0 {
		ses.news.ServerCount = info.ServerCount
	}
	if info.Serving.Told {
		ses.news.Serving = info.Serving
	}
	return nil
}

// find returns the stream, nil for one that is gone, or a violation for one
// that never was.
func (ses *Session) find(id uint64) (*Stream, error) {
	if st, ok := ses.streams[id]; ok {
		return st, nil
	}
	used := id <= ses.lastPeerID
	if ses.own(id) {
		used = id < ses.nextID
	}
	if id == 0 || !used {
		return nil, violation("frame for a stream that was never opened")
	}
	return nil, nil
}

// own says whether id is one that this side gives out.
func (ses *Session) own(id uint64) bool { return id%2 == ses.nextID%2 }

// checkData looks at a DATA frame of which nothing has come but its header.
func (ses *Session) checkData(h header) error {
	st, err := ses.find(h.stream)
	if st != nil && !st.state.receives() {
		ses.breach(st)
	}
	return err
}

// handleData takes a part of the DATA frame under way.
func (r *frameReader) handleData(part tunnel.Chunk, fin bool) error {
	ses, n := r.ses, part.Len()
	st, err := ses.find(r.data.stream)
	if st == nil {
		return err
	}
	if !st.state.receives() || st.recv.flow.receive(n) != nil {
		ses.breach(st)
		return nil
	}
	ses.count.received += uint64(n)
	ses.count.unread += n
	st.budget.add(n)
	if !st.budget.tolerates(st.recv.flow.unread()) {
		ses.resetStream(st, tunnel.CodeMemory)
		return nil
	}
	if taken := ses.deliverUnlocked(st, part); !st.recv.closed() {
		r.keep(st, part.Slice(taken, n))
	}
	if fin {
		st.recv.finish()
		if st.state != closed {
			st.onLocked(receivesFin)
		}
	}
	switch {
	case fin && st.recv.caughtUp() && !st.recv.closed():
		ses.deliverEndUnlocked(st)
	case fin || len(st.recv.queue) > 0:
		st.recv.wake()
	}
	if ses.alive.pingDue() {
		ses.pingLocked(time.Now())
	}
	return nil
}

// keep queues what its reader has to fetch: by reference where it is large,
// else in a copy together with its neighbours.
func (r *frameReader) keep(st *Stream, part tunnel.Chunk) {
	switch {
	case part.Len() >= shareMin:
		r.shared = true
		st.recv.keep(part.Keep())
	case part.Len() > 0:
		r.small = true
		st.recv.keepCopy(part.Bytes())
	}
}

// breach resets a stream whose peer broke the protocol on it (§7).
func (ses *Session) breach(st *Stream) { ses.resetStream(st, tunnel.CodeProtocol) }

// resetStream ends a stream from the inside, for both the peer and the holder.
func (ses *Session) resetStream(st *Stream, code tunnel.Code) {
	cause := &tunnel.ResetError{Code: code}
	ses.queue.discard(&st.send)
	st.sendResetLocked(code)
	st.cancelLocked(cause)
	st.dropLocked(cause, cause)
	ses.count.resets++
}

// cancelLocked gives up the dial that is made for the peer, if one is.
func (st *Stream) cancelLocked(cause error) {
	if st.cancel != nil {
		st.cancel(cause)
		st.cancel = nil
	}
}

func (ses *Session) handleCredit(id uint64, payload []byte) error {
	if len(payload) < 8 {
		return errShort
	}
	st, err := ses.find(id)
	if st == nil {
		return err
	}
	limit := binary.BigEndian.Uint64(payload)
	if limit > maxCredit || !st.state.established() {
		ses.breach(st)
		return nil
	}
	if st.send.flow.raise(limit) {
		st.send.cond.Broadcast()
	}
	return nil
}

func (ses *Session) handleReset(id uint64, payload []byte) error {
	if len(payload) < 2 {
		return errShort
	}
	st, err := ses.find(id)
	if st == nil {
		return err
	}
	code := tunnel.Code(binary.BigEndian.Uint16(payload))
	if code > tunnel.CodeMemory {
		code = tunnel.CodeUnknown // §8
	}
	ses.lose(st, &tunnel.ResetError{Code: code})
	return nil
}

// lose ends a stream because of the peer: what it had sent can still be read.
func (ses *Session) lose(st *Stream, cause error) {
	st.onLocked(receivesReset)
	ses.queue.discard(&st.send)
	st.cancelLocked(cause)
	st.recv.fail(cause)
	st.send.end = cause
	st.recv.tellFailure()
	st.wakeAllLocked()
}

// errLinkLost is what streams read once their link is gone.
var errLinkLost error = &tunnel.ResetError{Code: tunnel.CodeLost}

// forgetLocked takes the stream out of the link's books.
func (ses *Session) forgetLocked(st *Stream) {
	if ses.streams[st.id()] != st {
		return // it was refused
	}
	delete(ses.streams, st.id())
	ses.clients.leave(st.budget)
	if len(ses.streams) == 0 {
		ses.idleCond.Broadcast()
	}
}
