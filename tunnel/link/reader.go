package link

import (
	"encoding/binary"
	"runtime"
	"sync"
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

// flushAfter is how many bytes are read before deliveries are flushed, even while there
// is more to read: a keystroke must not wait for the end of another stream's bulk. The
// write buffer of a bulk stream is full by then.
const flushAfter = writeBufferSize

// run reads the connection until it fails, and rests while there is no stream. Each time in
// between has a goroutine of its own, and with it the stack that TLS needs.
func (r *frameReader) run() error {
	if r.rest.socket == nil {
		return r.read()
	}
	for {
		if r.rest.can() {
			r.rest.wait()
		}
		var err error
		var awake sync.WaitGroup
		awake.Go(func() { err = r.read() })
		awake.Wait()
		if err != errRests {
			return err
		}
	}
}

// read reads the connection until it fails or, with errRests, until the link may rest. It
// waits for no stream, but while the peer leaves too many answers unread.
func (r *frameReader) read() error {
	out := &r.ses.sender
	r.buf, r.pos, r.have, r.shared = tunnel.NewRecord(), 0, 0, false
	defer func() { r.buf.Release() }()
	defer r.unflushed.flush()
	read := 0 // bytes since the last flush
	for {
		// The write buffer flushes, too, before a Read waits.
		if out.buffer == nil || read >= flushAfter {
			r.unflushed.flush()
			read = 0
		}
		r.heldUp()
		n, err := out.conn.Read(r.buf.Bytes()[r.have:])
		r.have += n
		read += n
		if perr := r.parse(); perr != nil {
			return perr
		}
		if err != nil {
			return cutOff(err)
		}
		if r.rests() {
			return errRests
		}
		r.makeRoom()
		if r.small {
			// On a busy machine the reader of a small message would otherwise run
			// only when this loop has nothing more to decrypt.
			r.small = false
			runtime.Gosched()
		}
	}
}

// heldUp waits until Config.Hold lets the link read on. Deliveries are flushed first.
func (r *frameReader) heldUp() {
	if left := r.ses.hold.Left(); left > 0 {
		r.unflushed.flush()
		time.Sleep(left)
	}
}

// frameReader is the receiving side of a link, which cuts bytes into frames. It passes
// on DATA as it comes. Other frames are handled when they are complete; they fit the
// buffer.
type frameReader struct {
	ses       *Session
	unflushed unflushed
	buf       tunnel.Chunk
	rest      rest
	pos, have int  // unparsed bytes of buf
	shared    bool // a stream refers to buf
	quiet     int  // reads in a row after which there were no streams
	small     bool // a stream got a small message

	open *openMsg // where OPENs are parsed, so that each allocates nothing; nil: none has come
	data header   // the DATA frame under way
	left int      // of its payload, yet to come
}

func (r *frameReader) parse() error {
	r.ses.mu.Lock()
	defer r.ses.mu.Unlock()
	defer func() {
		if r.quiet++; !r.ses.streams.empty() {
			r.quiet = 0
		}
	}()
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

// next handles a frame, or a part of one. It returns false if it needs more bytes.
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
	r.ses.alive.heard = time.Now()
	return true, r.handle(h, b[headerSize:headerSize+h.length])
}

// payload passes n bytes of the present DATA frame to its stream. The head bytes before
// them may be overwritten by another header.
func (r *frameReader) payload(n, head int) error {
	from := r.pos
	r.pos += n
	r.left -= n
	if r.left == 0 {
		r.ses.alive.heard = time.Now()
	}
	fin := r.left == 0 && r.data.flags&flagDataFin != 0
	if n == 0 && !fin {
		return r.checkData(r.data)
	}
	return r.handleData(r.buf.View(from, from+n, head), fin)
}

// rests reports whether the link rests after this read. It does not after the first one
// without streams: one that has just carried a stream is likely to carry the next.
func (r *frameReader) rests() bool { return r.quiet > 1 && r.pos == r.have && r.rest.can() }

// makeRoom prepares the buffer for the next read. It moves unparsed bytes to the start,
// or to a new buffer if streams refer to this one.
func (r *frameReader) makeRoom() {
	rest := r.buf.Bytes()[r.pos:r.have]
	if r.shared {
		next := tunnel.NewRecord()
		copy(next.Bytes(), rest)
		r.buf.Release()
		r.buf, r.shared = next, false
	} else {
		copy(r.buf.Bytes(), rest)
	}
	r.pos, r.have = 0, len(rest)
}

// frameKinds are the types that this version knows: whether they are of a stream, and
// the least payload of those that have no fields.
var frameKinds = [...]struct {
	ofStream bool
	least    int
}{
	frameHello: {false, 0}, framePing: {false, 8}, frameGoAway: {false, 2}, frameInfo: {false, 0},
	frameOpen: {true, 0}, frameOpened: {true, 0}, frameData: {true, 0}, frameCredit: {true, 8},
	frameReset: {true, 2}, frameAck: {true, 8}, frameMove: {true, 0},
}

// handle takes a frame that is not DATA.
func (r *frameReader) handle(h header, payload []byte) error {
	if int(h.typ) >= len(frameKinds) {
		return nil // §2: unknown types are skipped
	}
	switch kind := frameKinds[h.typ]; {
	case !kind.ofStream && h.stream != 0:
		return violation("frame of the link on a stream")
	case kind.ofStream && h.stream == 0:
		return violation("frame of a stream on stream 0")
	case len(payload) < kind.least:
		return errShort
	}
	switch h.typ {
	case frameHello:
		return violation("second HELLO")
	case framePing:
		r.handlePing(h, payload)
		return nil
	case frameGoAway:
		return r.handleGoAway(payload)
	case frameInfo:
		return r.handleInfo(payload)
	case frameOpen:
		return r.handleOpen(h.stream, payload)
	case frameMove:
		return r.handleMoveUnlocked(h)
	}
	st, err := r.ses.streams.find(h.stream)
	if st == nil {
		return err
	}
	switch h.typ {
	case frameOpened:
		return r.handleOpened(st, payload)
	case frameCredit:
		r.handleCreditUnlocked(st, binary.BigEndian.Uint64(payload))
	case frameReset:
		handleReset(st, tunnel.Code(binary.BigEndian.Uint16(payload)))
	case frameAck:
		r.handleAckUnlocked(st, Ack{Offset: binary.BigEndian.Uint64(payload), End: h.flags&flagAckEnd != 0, Big: h.flags&flagAckBig != 0})
	}
	return nil
}

var errShort = violation("payload too short for its type")

func (r *frameReader) handlePing(h header, payload []byte) {
	ses, value := r.ses, binary.BigEndian.Uint64(payload)
	if h.flags&flagPingAck != 0 {
		ses.alive.answered(value, time.Now())
		return
	}
	ses.alive.asked = true
	ses.sender.queue.pushPong(value)
	ses.sender.callFlusherLocked()
}

func (r *frameReader) handleGoAway(payload []byte) error {
	code := GoAwayCode(binary.BigEndian.Uint16(payload))
	if code != GoAwayDrain {
		return &GoAwayError{Code: code, Text: cut(payload[2:])}
	}
	r.ses.drains.Happen()
	return nil
}

func (r *frameReader) handleInfo(payload []byte) error {
	info, news := Hello{}, &r.ses.news
	if err := info.decode(payload); err != nil {
		return violation("INFO: " + err.Error())
	}
	if info.ServerCount > 0 {
		news.serverCount = info.ServerCount
	}
	if info.Serving.Told {
		news.serving = info.Serving
	}
	return nil
}

// checkData checks a DATA frame of which only the header has come.
func (r *frameReader) checkData(h header) error {
	st, err := r.ses.streams.find(h.stream)
	if st != nil && !st.state.receives() {
		st.breachLocked()
	}
	return err
}

// handleData takes a part of the present DATA frame.
func (r *frameReader) handleData(part tunnel.Chunk, fin bool) error {
	ses, n := r.ses, part.Len()
	st, err := ses.streams.find(r.data.stream)
	if st == nil {
		return err
	}
	if !st.state.receives() || !st.recv.credit.receive(n) {
		st.breachLocked()
		return nil
	}
	ses.receivedLocked(n)
	ses.count.unread += n
	st.budget.Hold(n)
	if taken := r.deliverUnlocked(st, part); taken < n && !st.recv.dropped {
		if !tolerates(st.budget, st.recv.credit.unread()) { // what its reader takes at once is no burden
			st.faultLocked(tunnel.CodeMemory)
			return nil
		}
		r.keep(st, part.Slice(taken, n))
	}
	if fin {
		st.recv.finish()
		if st.state != closed {
			st.onLocked(receivesFin)
		}
	}
	switch {
	case fin && st.recv.caughtUp() && !st.recv.dropped:
		r.deliverEndUnlocked(st)
	case fin || !st.recv.queue.Empty():
		st.recv.wake()
	}
	if ses.alive.pingDue() {
		ses.pingLocked(time.Now())
	}
	return nil
}

// keep queues part for the stream's reader: by reference if it is large, else in a copy
// together with its neighbours.
func (r *frameReader) keep(st *Stream, part tunnel.Chunk) {
	switch {
	case part.Len() >= shareMin:
		r.shared = true
		st.recv.queue.Push(part.Keep())
	case part.Len() > 0:
		r.small = true
		st.recv.keepCopy(part.Bytes())
	}
}

func (r *frameReader) handleCreditUnlocked(st *Stream, limit uint64) {
	if limit > maxCredit || !st.state.established() {
		st.breachLocked()
		return
	}
	if st.send.credit.raise(limit) {
		st.send.cond.Broadcast()
		r.creditedUnlocked(st)
	}
}

func handleReset(st *Stream, code tunnel.Code) {
	if !code.Known() {
		code = tunnel.CodeUnknown // §8
	}
	st.loseLocked(&tunnel.ResetError{Code: code})
}
