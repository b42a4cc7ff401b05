package legacy

import (
	"errors"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

const (
	// sendWindow is what a connection may have waiting to be sent: one chunk
	// in gRPC's hands and one behind it. More would only age in the queue.
	sendWindow = 128 << 10

	// maxReplies bounds answers to packets about connections nobody knows.
	// A peer that floods with those and does not read goes unanswered.
	maxReplies = 1024

	// maxControl bounds control packets while the peer's gRPC does not take
	// them. Dials fail above it, so a stuck peer cannot pile them up.
	maxControl = 8192

	// copySmall is the payload size below which a chunk moves to a block of
	// its size before it waits.
	copySmall = 2<<10 - tunnel.Headroom
)

// sender writes the packets of one gRPC stream, which takes one at a time.
// Control packets go first, in order; then connections take turns, a chunk
// each, so that none waits for another's queue.
type sender struct {
	send    func(m any) error
	segment Segment
	metrics Metrics
	budget  *Budget

	mu      sync.Mutex
	work    sync.Cond
	control []controlPacket
	ring    []*sendQueue
	ending  bool  // run returns once nothing waits
	err     error // why nothing can be sent any more
}

// controlPacket is one without payload; sent, where set, is called after it.
type controlPacket struct {
	*client.Packet
	sent func()
}

func newSender(send func(any) error, segment Segment, limits *Limits, metrics Metrics) *sender {
	s := &sender{send: send, segment: segment, metrics: metrics, budget: limits.Budget}
	s.work.L = &s.mu
	return s
}

// run sends until stop or finish was called or the stream fails.
func (s *sender) run() error {
	for {
		m, kind, q, sent := s.next()
		if m == nil {
			return s.failure()
		}
		s.metrics.Packet(s.segment, kind)
		err := s.send(m)
		if d, ok := m.(*dataMessage); ok {
			if !d.taken {
				d.chunk.Release()
			}
			q.wasSent(d.size)
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				s.metrics.StreamError(s.segment, status.Code(err), kind)
			}
			s.stop(err)
			return err
		}
		if sent != nil {
			sent()
		}
	}
}

// next waits for something to send. sent, where set, is to be called after.
func (s *sender) next() (m any, kind client.PacketType, q *sendQueue, sent func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil {
		if len(s.control) > 0 {
			p := s.control[0]
			s.control = pop(s.control)
			return p.Packet, p.Type, nil, p.sent
		}
		if len(s.ring) > 0 {
			q := s.ring[0]
			s.ring = pop(s.ring)
			q.ringed = false
			if len(q.chunks) > 0 {
				chunk := q.chunks[0]
				q.chunks = pop(q.chunks)
				q.enqueue()
				return &dataMessage{id: q.id, chunk: chunk, size: chunk.Size()}, client.PacketType_DATA, q, nil
			}
			if p, sent := q.fin, q.sent; p != nil {
				q.fin, q.sent, q.finSent = nil, nil, true
				return p, p.Type, q, sent
			}
			continue
		}
		if s.ending {
			return nil, 0, nil, nil
		}
		s.work.Wait()
	}
	return nil, 0, nil, nil
}

// pop removes the first element; an empty queue keeps no memory.
func pop[T any](queue []T) []T {
	var zero T
	queue[0] = zero
	if len(queue) == 1 {
		return nil
	}
	return queue[1:]
}

func (s *sender) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// tell sends a control packet. It never blocks.
func (s *sender) tell(p *client.Packet) { s.push(p, math.MaxInt, nil) }

// tellThen is tell, and calls sent once the packet is with gRPC.
func (s *sender) tellThen(p *client.Packet, sent func()) { s.push(p, math.MaxInt, sent) }

// ask is tell for a packet that starts something; false when too many wait.
func (s *sender) ask(p *client.Packet) bool { return s.push(p, maxControl, nil) }

// reply is tell for an answer that nobody misses: dropped when many wait.
func (s *sender) reply(p *client.Packet) { s.push(p, maxReplies, nil) }

func (s *sender) push(p *client.Packet, limit int, sent func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil || len(s.control) >= limit {
		return false
	}
	s.control = append(s.control, controlPacket{p, sent})
	s.work.Signal()
	return true
}

// retract takes back what ask was given, unless it was sent already.
func (s *sender) retract(p *client.Packet) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, waiting := range s.control {
		if waiting.Packet == p {
			s.control = slices.Delete(s.control, i, i+1)
			return true
		}
	}
	return false
}

// finish lets run return once everything was sent.
func (s *sender) finish() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ending = true
	s.work.Signal()
}

// stop ends run at once, and frees what waits in the ring: some of it may be of
// connections that the mux has forgotten. The queues of those that it knows must
// be failed too.
func (s *sender) stop(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	for _, q := range s.ring {
		q.drop()
	}
	s.control, s.ring = nil, nil
	s.work.Signal()
}

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
	ringed   bool  // is in the sender's ring
	first    bool  // was gated to begin with; never changes
	gated    bool  // must not be sent yet
	mute     bool  // what is put is dropped
	err      error // what put returns from now on
	deadline deadline
}

func (q *sendQueue) init(s *sender, id int64) {
	q.s, q.id = s, id
	q.cond.L = &s.mu
}

// enqueue takes a turn in the ring where there is something to send.
func (q *sendQueue) enqueue() {
	if !q.ringed && !q.gated && q.s.err == nil && (len(q.chunks) > 0 || q.fin != nil) {
		q.ringed = true
		q.s.ring = append(q.s.ring, q)
		q.s.work.Signal()
	}
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
	for q.err == nil && !q.mute && !q.deadline.passed && !q.room() {
		q.cond.Wait()
	}
	switch {
	case q.mute:
		c.Release()
		return nil
	case q.err != nil:
		c.Release()
		return q.err
	case q.deadline.passed:
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
	return q.held == 0 || q.held < sendWindow && q.s.budget.free() > 0
}

func (q *sendQueue) hold(size int) {
	q.held += size
	q.s.budget.add(size)
}

func (q *sendQueue) wasSent(size int) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.hold(-size)
	q.cond.Broadcast()
}

// finish sends p after what waits, and calls sent then; more cannot be put.
// Only the first call counts.
func (q *sendQueue) finish(p *client.Packet, sent func()) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.close(net.ErrClosed)
	if q.fin == nil && !q.finSent {
		q.fin, q.sent = p, sent
		q.enqueue()
	}
}

// onSent arranges for sent to be called once the finishing packet is on its
// way; where it is already, it returns true instead. It never calls sent itself.
func (q *sendQueue) onSent(sent func()) bool {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if !q.finSent {
		q.sent = sent
	}
	return q.finSent
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
	q.deadline.set(time.Time{}, &q.cond)
}

// drop frees what waits.
func (q *sendQueue) drop() {
	for _, c := range q.chunks {
		q.hold(-c.Size())
	}
	tunnel.ReleaseAll(q.chunks)
	q.chunks, q.fin, q.sent = nil, nil, nil
}

// silence drops what is put from now on, as if it had been sent.
func (q *sendQueue) silence() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.mute = true
	q.cond.Broadcast()
}

// open lets a gated queue be sent.
func (q *sendQueue) open() {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	if q.gated {
		q.gated = false
		q.enqueue()
	}
}

func (q *sendQueue) count() uint64 {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	return q.puts
}

func (q *sendQueue) setDeadline(t time.Time) {
	q.s.mu.Lock()
	defer q.s.mu.Unlock()
	q.deadline.set(t, &q.cond)
}
