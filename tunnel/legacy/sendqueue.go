package legacy

import (
	"net"
	"os"
	"sync"
	"time"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

const (
	// sendWindow is what a connection may have waiting to be sent: one chunk
	// in gRPC's hands and one behind it. More would only age in the queue.
	sendWindow = 128 << 10

	// copySmall is the payload size below which a chunk moves to a block of
	// its size before it waits.
	copySmall = 2<<10 - tunnel.Headroom
)

// sendQueue is what one connection has to send. The sender's lock guards all of
// it.
type sendQueue struct {
	s  *sender
	id int64

	cond     sync.Cond
	chunks   []tunnel.Chunk
	held     int
	puts     uint64
	fin      *client.Packet // goes after the chunks
	sent     func()         // called once fin was sent
	finSent  bool
	ringed   bool // is in the sender's ring
	gate     gate
	mute     bool  // put drops chunks
	err      error // what put returns from now on
	deadline tunnel.Deadline
}

func (q *sendQueue) init(s *sender, id int64) {
	q.s, q.id = s, id
	q.cond.L = &s.mu
}

// enqueue takes a turn in the ring where there is something to send.
func (q *sendQueue) enqueue() {
	switch {
	case q.ringed || q.s.err != nil || len(q.chunks) == 0 && q.fin == nil:
	case q.gate.isShut:
		q.askFirst()
	default:
		q.ringed = true
		q.s.ring = append(q.s.ring, q)
		q.s.work.Signal()
	}
}

// turn is what the sender, at whose ring's head q was, is to send of it: a chunk,
// else the finishing packet, else nil. sent is as in sender.next.
func (q *sendQueue) turn() (m any, kind client.PacketType, sent func()) {
	q.ringed = false
	if len(q.chunks) > 0 {
		chunk := q.chunks[0]
		q.chunks = pop(q.chunks)
		q.enqueue()
		return &dataMessage{id: q.id, chunk: chunk, size: chunk.Size()}, client.PacketType_DATA, nil
	}
	if p, sent := q.fin, q.sent; p != nil {
		q.fin, q.sent, q.finSent = nil, nil, true
		return p, p.Type, sent
	}
	return nil, 0, nil
}

// put takes the chunk over, after waiting for room.
func (q *sendQueue) put(c tunnel.Chunk) error {
	if c.Len() <= copySmall && c.Size() > copySmall+tunnel.Headroom {
		small := tunnel.CopyChunk(c.Bytes())
		c.Release()
		c = small
	}
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	for q.err == nil && !q.mute && !q.deadline.Passed() && !q.room() {
		q.cond.Wait()
	}
	switch {
	case q.mute:
		c.Release()
		return nil
	case q.err != nil:
		c.Release()
		return q.err
	case q.deadline.Passed():
		c.Release()
		return os.ErrDeadlineExceeded
	case c.Len() == 0:
		c.Release()
		return nil
	}
	q.chunks = append(q.chunks, c)
	q.hold(c.Size())
	q.puts++
	q.enqueue()
	return nil
}

// room says whether more may wait. Once the budget is used up, one chunk.
func (q *sendQueue) room() bool {
	return q.held == 0 || q.held < sendWindow && q.s.budget.Left() > 0
}

func (q *sendQueue) hold(size int) {
	q.held += size
	q.s.budget.Hold(size)
}

func (q *sendQueue) wasSent(size int) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.hold(-size)
	q.cond.Broadcast()
}

// finish sends p after what waits, and calls sent then; more cannot be put. Of several calls
// the last counts before p is sent, and none behind it.
func (q *sendQueue) finish(p *client.Packet, sent func()) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.close(net.ErrClosed)
	if !q.finSent {
		q.fin, q.sent = p, sent
		q.enqueue()
	}
}

// end makes put fail from now on. What waits is still sent.
func (q *sendQueue) end(err error) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.close(err)
}

func (q *sendQueue) close(err error) {
	q.mute = false
	if q.err == nil {
		q.err = err
	}
	q.cond.Broadcast()
}

// fail is end, and drops what waits, a finishing packet too.
func (q *sendQueue) fail(err error) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.close(err)
	q.drop()
	q.openLocked() // nothing waits
	q.deadline.Set(time.Time{}, &q.cond)
}

// drop frees what waits.
func (q *sendQueue) drop() {
	for _, c := range q.chunks {
		q.hold(-c.Size())
	}
	tunnel.ReleaseAll(q.chunks)
	q.chunks, q.fin, q.sent = nil, nil, nil
}

// silence makes put drop chunks from now on, as if they had been sent.
func (q *sendQueue) silence() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.mute = true
	q.cond.Broadcast()
}

func (q *sendQueue) count() uint64 {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	return q.puts
}

func (q *sendQueue) setDeadline(t time.Time) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.deadline.Set(t, &q.cond)
}
