package legacy

import (
	"errors"
	"io"
	"math"
	"slices"
	"sync"

	"google.golang.org/grpc/status"

	"konnectivity/tunnel/shares"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

const (
	// maxReplies bounds answers to packets about unknown connections.
	// A peer that floods with those and does not read goes unanswered.
	maxReplies = 1024

	// maxClientReplies is the same for a client's stream. There may be thousands of
	// those, with one connection each.
	maxClientReplies = 16

	// maxControl bounds control packets while the peer's gRPC does not take
	// them. Dials fail above it, so a stuck peer cannot pile them up.
	maxControl = 8192
)

// sender writes the packets of one gRPC stream, which takes one at a time.
// Control packets go first, in order; then connections take turns, a chunk
// each, so that none waits for another's queue.
type sender struct {
	send    func(m any) error
	segment Segment
	metrics Metrics
	budget  *shares.Budget

	mu      sync.Mutex
	work    sync.Cond
	control []controlPacket
	ring    []*sendQueue
	shut    int   // queues whose gate is, and so not in the ring
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
func (s *sender) run() {
	for {
		m, kind, q, sent := s.next()
		if m == nil {
			return
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
			return
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
			if m, kind, sent := q.turn(); m != nil {
				return m, kind, q, sent
			}
			continue
		}
		if s.ending && s.shut == 0 {
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

// ask is tell for a packet that starts something, or whose number the peer
// chooses; false when too many wait.
func (s *sender) ask(p *client.Packet) bool { return s.push(p, maxControl, nil) }

// reply is tell for an answer that may be lost: it is dropped when many wait.
func (s *sender) reply(p *client.Packet) {
	limit := maxReplies
	if s.segment == ToClient {
		limit = maxClientReplies
	}
	s.push(p, limit, nil)
}

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
