package link

import (
	"slices"

	"konnectivity/tunnel"
)

const (
	// smallMessage bounds a message that is copied for the present writer instead of
	// waiting for a turn: a keystroke, a request, a response header. A copy costs
	// less than a goroutine's wake-up.
	smallMessage = 4 << 10

	// maxPendingData bounds the copied bytes of one stream; they fit one frame.
	maxPendingData = 2 * smallMessage

	// maxCopied bounds the copied bytes of a link while the kernel takes nothing.
	// Beyond it, small messages wait like large ones.
	maxCopied = 256 << 10

	// copiedUnit is the step in which copied bytes count in the budget: hardly ever
	// while the kernel keeps up.
	copiedUnit = 16 << 10

	// orphanMemory is what an orphan takes: a closed stream that still has frames
	// to send. On a link, those beyond fewOrphans count in the budget.
	orphanMemory = 1 << 10
	fewOrphans   = 16

	// maxOrphans is how many a link may have before it is not read any more.
	maxOrphans = 1 << 10

	// youngBytes is how long a stream counts as new and goes before bulk.
	youngBytes = 256 << 10

	// scratchSize is where small frames of many streams are put together;
	// what does not fit waits for the next round.
	scratchSize = 4 * tunnel.RecordSize
)

// keptPlaces bounds how many streams an empty queue keeps room for, 8 bytes each: without any, it
// would be allocated anew for each frame that comes alone.
const keptPlaces = 64

// sendQueue orders a link's frames and turns: first frames of the link itself, then small
// frames of streams in order of arrival, then turns of streams
// that have more, new streams before bulk and each kind in order of arrival.
//
// It does no I/O and has no lock: Session.mu guards it.
type sendQueue struct {
	unsent bool // the write buffer holds bytes that the kernel did not take

	control              [controls][]byte // encoded
	controlled           bool             // there are some
	ping, pong           bool
	pingValue, pongValue uint64

	small   []*sendHalf // those whose outbox is not empty
	copied  int         // bytes of small messages in their outboxes
	held    int         // how many of the copied bytes count in the budget
	orphans int         // those of small whose stream is closed
	budget  *Budget     // the link's

	young, bulk turns

	dataFrames uint64 // sent so far
}

// control is a kind of a link's frames that say how this side is.
type control uint8

const (
	controlCount   control = iota // INFO with the server count
	controlServing                // INFO with whether agents serve
	controlDrain                  // GOAWAY, code 0
	controls
)

// pushControl queues an encoded frame of the link; of several of a kind, the last one goes.
func (q *sendQueue) pushControl(kind control, frame []byte) {
	q.control[kind], q.controlled = frame, true
}

// pushPing queues a PING; of several that wait, the last one goes.
func (q *sendQueue) pushPing(value uint64) { q.ping, q.pingValue = true, value }

// pushPong is pushPing for the answer to one.
func (q *sendQueue) pushPong(value uint64) { q.pong, q.pongValue = true, value }

// push queues the frames in h's outbox.
func (q *sendQueue) push(h *sendHalf) {
	if !h.out.queued {
		h.out.queued = true
		q.small = append(q.small, h)
	}
}

// orphan counts h, whose stream is closed, if frames of it are queued.
func (q *sendQueue) orphan(h *sendHalf) {
	if !h.out.queued || h.orphan {
		return
	}
	h.orphan = true
	if q.orphans++; q.orphans > fewOrphans {
		q.budget.Hold(orphanMemory)
	}
}

// disown ends what orphan began: the frames are sent, or dropped.
func (q *sendQueue) disown(h *sendHalf) {
	if !h.orphan {
		return
	}
	h.orphan = false
	if q.orphans--; q.orphans >= fewOrphans {
		q.budget.Give(orphanMemory)
	}
}

// backlogged reports whether the peer must read answers before it may ask for more.
func (q *sendQueue) backlogged() bool {
	return q.orphans >= maxOrphans || q.orphans > fewOrphans && q.budget.Short()
}

// pushMessage queues a copy of a small message, if there is room for it.
func (q *sendQueue) pushMessage(h *sendHalf, size int, src []tunnel.Chunk) bool {
	if size > smallMessage || len(h.out.data)+size > maxPendingData || q.copied+size > q.room() {
		return false
	}
	for _, c := range src {
		h.out.data = append(h.out.data, c.Bytes()...)
	}
	q.countCopied(size)
	q.push(h)
	return true
}

// room is how many bytes may be copied. Where memory is short, messages beyond a unit
// stay with their writers, and count there.
func (q *sendQueue) room() int {
	if q.held > 0 && q.budget.Short() {
		return copiedUnit
	}
	return maxCopied
}

// countCopied adds n to the copied bytes; n may be negative.
func (q *sendQueue) countCopied(n int) {
	q.copied += n
	if held := max(0, q.copied) / copiedUnit * copiedUnit; held != q.held {
		q.budget.Hold(held - q.held)
		q.held = held
	}
}

// discard drops payload, FIN and credit, which a reset overtakes.
func (q *sendQueue) discard(h *sendHalf) {
	q.countCopied(-len(h.out.data))
	h.out.data, h.out.fin, h.out.credit = nil, false, 0
}

// pushTurn puts h into the line for turns.
func (q *sendQueue) pushTurn(h *sendHalf) { q.line(h).push(h) }

// dropTurn takes h out of the line.
func (q *sendQueue) dropTurn(h *sendHalf) { q.line(h).remove(h) }

// line is where h waits. It stays the same while h waits.
func (q *sendQueue) line(h *sendHalf) *turns {
	if h.credit.sent < youngBytes {
		return &q.young
	}
	return &q.bulk
}

// popTurn is whose turn it is, or nil.
func (q *sendQueue) popTurn() *sendHalf {
	if h := q.young.pop(); h != nil {
		return h
	}
	return q.bulk.pop()
}

// pending reports whether there are frames, or bytes in the write buffer, that need no
// turn of a stream.
func (q *sendQueue) pending() bool {
	return len(q.small) > 0 || q.controlled || q.pong || q.ping || q.unsent
}

// pop appends to b the frames that go next: own's first, which is about to write what
// comes after them, then as many of the others as fit. own may be nil.
func (q *sendQueue) pop(b []byte, own *sendHalf) []byte {
	for _, frame := range q.control {
		b = append(b, frame...)
	}
	q.control, q.controlled = [controls][]byte{}, false
	q.unsent = false // the caller flushes
	if q.pong {
		q.pong = false
		b = appendPing(b, flagPingAck, q.pongValue)
	}
	if q.ping {
		q.ping = false
		b = appendPing(b, 0, q.pingValue)
	}
	if own != nil {
		queued := own.out.queued
		b = q.empty(own, b)
		own.out.queued = queued // its place in the line stays
	}
	n := 0
	for n < len(q.small) && len(b) < scratchSize-maxPayload {
		b = q.empty(q.small[n], b)
		n++
	}
	if q.small = slices.Delete(q.small, 0, n); len(q.small) == 0 && cap(q.small) > keptPlaces {
		q.small = nil
	}
	return b
}

// empty moves the frames of h's outbox to b.
func (q *sendQueue) empty(h *sendHalf, b []byte) []byte {
	q.disown(h)
	q.countCopied(-len(h.out.data))
	if len(h.out.data) > 0 || h.out.fin {
		q.dataFrames++
	}
	return h.out.appendTo(b, h.id)
}

// clear drops all frames. Streams that wait for a turn leave by themselves.
func (q *sendQueue) clear() {
	for _, h := range q.small {
		q.disown(h)
	}
	q.countCopied(-q.copied)
	q.small, q.control = nil, [controls][]byte{}
	q.controlled, q.pong, q.ping = false, false, false
}

// outbox holds the frames of a stream that need neither credit nor a turn: control
// frames, and copied small messages. Each kind has one place, so the number of streams
// bounds what waits for a blocked connection.
type outbox struct {
	intro     []byte // payload of OPEN or OPENED; nil: none
	data      []byte
	credit    uint64 // 0: none
	ack       Ack
	acks      bool // ack is valid
	move      bool
	stay      bool
	introType frameType
	queued    bool // it is among sendQueue.small
	fin       bool
	reset     bool
	resetCode tunnel.Code
}

// appendTo encodes and clears the outbox, in the order of a stream's life.
func (o *outbox) appendTo(b []byte, id uint64) []byte {
	if o.intro != nil {
		b = appendFrame(b, o.introType, 0, id, o.intro)
	}
	if o.credit != 0 {
		b = appendCredit(b, id, o.credit)
	}
	if o.acks {
		b = appendAck(b, id, o.ack)
	}
	if o.move {
		b = appendFrame(b, frameMove, 0, id, nil)
	}
	if o.stay {
		b = appendFrame(b, frameMove, flagMoveStay, id, nil)
	}
	if len(o.data) > 0 || o.fin {
		var flags uint8
		if o.fin {
			flags = flagDataFin
		}
		b = appendFrame(b, frameData, flags, id, o.data)
	}
	if o.reset {
		b = appendReset(b, id, o.resetCode)
	}
	*o = outbox{}
	return b
}

// turns is a first-in, first-out line of streams that wait for a turn.
type turns struct{ line []*sendHalf }

func (t *turns) push(h *sendHalf) { t.line = append(t.line, h) }

func (t *turns) pop() *sendHalf {
	if len(t.line) == 0 {
		return nil
	}
	h := t.line[0]
	t.line[0] = nil
	if t.line = t.line[1:]; len(t.line) == 0 {
		t.line = nil
	}
	return h
}

func (t *turns) remove(h *sendHalf) {
	if i := slices.Index(t.line, h); i >= 0 {
		t.line = slices.Delete(t.line, i, i+1)
	}
}
