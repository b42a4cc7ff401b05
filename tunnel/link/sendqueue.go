package link

import (
	"slices"

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

	// leftUnit is in what steps that counts in the budget: hardly ever while the
	// kernel takes what is sent.
	leftUnit = 16 << 10

	// maxControl bounds what Drain, SetServerCount and SetServing may queue for
	// a connection that takes nothing; a link that is that far behind will be
	// found dead.
	maxControl = 4 << 10

	// untoldMemory is what a stream takes that is gone and whose peer has yet to be
	// told. Beyond fewUntold of them on a link, they count in the budget.
	untoldMemory = 1 << 10
	fewUntold    = 16

	// maxUntold is how many there may be on a link before it is not read any more.
	maxUntold = 1 << 10

	// youngBytes is how long a stream counts as new and goes before bulk.
	youngBytes = 256 << 10

	// scratchSize is where small frames of many streams are put together;
	// what does not fit waits for the next round.
	scratchSize = 4 * tunnel.RecordSize
)

// sendQueue is what a link has to send, and decides what goes next: frames of
// the link itself, then the small ones of streams in order of arrival, then
// turns of the streams that have more, new ones before bulk and each kind in
// order of arrival. A turn is the connection for as long as turnBytes last.
//
// It does no I/O and has no lock: Session.mu guards it.
type sendQueue struct {
	taken  bool // somebody has the connection
	corked bool // the cork holds what the kernel did not take

	control              []byte // encoded GOAWAY and INFO
	ping, pong           bool
	pingValue, pongValue uint64

	small  []*sendHalf // whose outbox holds something
	left   int         // bytes of small messages among it
	held   int         // of them, those that count in the budget
	untold int         // those of small whose stream is gone
	budget *Budget     // that these count in

	young, bulk turns

	dataFrames uint64 // that have gone
}

// take gives the caller the connection, unless somebody has it.
func (q *sendQueue) take() bool {
	if q.taken {
		return false
	}
	q.taken = true
	return true
}

// pushControl queues an encoded frame of the link.
func (q *sendQueue) pushControl(frame []byte) {
	if len(q.control) <= maxControl {
		q.control = append(q.control, frame...)
	}
}

// pushPing queues a PING; of several that wait, the last one goes.
func (q *sendQueue) pushPing(value uint64) { q.ping, q.pingValue = true, value }

// pushPong is pushPing for the answer to one.
func (q *sendQueue) pushPong(value uint64) { q.pong, q.pongValue = true, value }

// push queues what is in h's outbox.
func (q *sendQueue) push(h *sendHalf) {
	if !h.out.queued {
		h.out.queued = true
		q.small = append(q.small, h)
	}
}

// gone notes that h's stream is closed, which its peer may have yet to be told.
func (q *sendQueue) gone(h *sendHalf) {
	if !h.out.queued || h.untold {
		return
	}
	h.untold = true
	if q.untold++; q.untold > fewUntold {
		q.budget.Hold(untoldMemory)
	}
}

// told ends what gone began.
func (q *sendQueue) told(h *sendHalf) {
	if !h.untold {
		return
	}
	h.untold = false
	if q.untold--; q.untold >= fewUntold {
		q.budget.Give(untoldMemory)
	}
}

// behind says that the peer has so much to be told that it is to read before it
// asks for more.
func (q *sendQueue) behind() bool {
	return q.untold >= maxUntold || q.untold > fewUntold && q.budget.Short()
}

// pushMessage queues a copy of a small message, if there is room for it.
func (q *sendQueue) pushMessage(h *sendHalf, size int, src []tunnel.Chunk) bool {
	if size > smallMessage || len(h.out.data)+size > maxPendingData || q.left+size > q.room() {
		return false
	}
	for _, c := range src {
		h.out.data = append(h.out.data, c.Bytes()...)
	}
	q.leave(size)
	q.push(h)
	return true
}

// room is how many bytes of small messages may be left. Where memory is short,
// those beyond a unit wait where they are, and count there.
func (q *sendQueue) room() int {
	if q.held > 0 && q.budget.Short() {
		return leftUnit
	}
	return maxLeft
}

// leave notes that n bytes of small messages more are left, or fewer.
func (q *sendQueue) leave(n int) {
	q.left += n
	if held := max(0, q.left) / leftUnit * leftUnit; held != q.held {
		q.budget.Hold(held - q.held)
		q.held = held
	}
}

// discard forgets payload, FIN and credit that a reset overtakes.
func (q *sendQueue) discard(h *sendHalf) {
	q.leave(-len(h.out.data))
	h.out.data, h.out.fin, h.out.credit = nil, false, 0
}

// pushTurn has h wait for the connection.
func (q *sendQueue) pushTurn(h *sendHalf) { q.line(h).push(h) }

// dropTurn takes h out of the line.
func (q *sendQueue) dropTurn(h *sendHalf) { q.line(h).remove(h) }

// line is where h waits. It does not change while it does.
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

// pending says whether there is something that needs no turn of its own.
func (q *sendQueue) pending() bool {
	return len(q.small) > 0 || len(q.control) > 0 || q.pong || q.ping || q.corked
}

// pop appends to b what goes next: first what own, if any, left behind, since
// it is about to write what comes after it, then as much of the rest as fits.
func (q *sendQueue) pop(b []byte, own *sendHalf) []byte {
	b = append(b, q.control...)
	q.control = nil
	q.corked = false // whoever pops flushes
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
		q.small[n] = nil
		n++
	}
	if q.small = q.small[n:]; len(q.small) == 0 {
		q.small = nil
	}
	return b
}

// empty appends to b what is in h's outbox.
func (q *sendQueue) empty(h *sendHalf, b []byte) []byte {
	q.told(h)
	q.leave(-len(h.out.data))
	if len(h.out.data) > 0 || h.out.fin {
		q.dataFrames++
	}
	return h.out.appendTo(b, h.id)
}

// clear forgets all that needs no turn; those who wait for one leave by
// themselves.
func (q *sendQueue) clear() {
	for _, h := range q.small {
		q.told(h)
	}
	q.leave(-q.left)
	q.small, q.control = nil, nil
	q.pong, q.ping = false, false
}

// outbox is what a stream has to send that needs neither credit nor a turn:
// control frames, and small messages left behind. Each kind has one place, so
// what waits for a blocked connection is bounded by the number of streams.
type outbox struct {
	intro     []byte // the payload of introType, OPEN or OPENED; nil: none
	data      []byte
	credit    uint64 // 0: none
	ack       Ack
	acks      bool // ack is to be sent
	move      bool
	stay      bool
	introType frameType
	queued    bool // it is in the sendQueue's line
	fin       bool
	reset     bool
	resetCode tunnel.Code
}

// appendTo encodes and clears what is there, in the order of a stream's life.
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

// turns is a first-in, first-out line of those who wait for the connection.
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
