package legacy

import (
	"io"
	"os"
	"sync"
	"time"

	"konnectivity/tunnel"
)

// recvQueue is what a connection has received and nobody has read yet. One
// goroutine puts and one reads; any may call the rest.
//
// Old peers have no credit, so what a connection gets is governed here. Above
// connBuffer it is full: its reader must move within stallTimeout. Above its
// share of the budget, the stream pauses for a reader that moves, as the only
// way there is to slow the sender down; at twice its share it is reset.
type recvQueue struct {
	limits  *Limits
	metrics Metrics
	segment Segment
	block   bool   // put waits while full: for a stream that nobody shares
	onStall func() // resets the connection; called without the lock

	mu       sync.Mutex
	cond     sync.Cond
	backlog  backlog
	end      error // what the reader gets once the backlog is empty
	discard  bool  // nobody reads any more
	deadline tunnel.Deadline

	puts, reads uint64

	// For the room that there is (recvroom.go).
	full       bool
	movedAt    time.Time // when the reader last took something while full
	pauseReads uint64    // reads as the last pause began while it was not full
	stall      *time.Timer
	stallReads uint64
}

func (q *recvQueue) init() { q.cond.L = &q.mu }

// put takes a batch over. It returns false when the connection must be reset
// because it would hold too much.
func (q *recvQueue) put(batch []tunnel.Chunk) bool {
	size := 0
	for _, c := range batch {
		size += c.Size()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	q.puts++
	if q.ended() || !q.makeRoom(size) || q.ended() {
		overfull := !q.ended()
		tunnel.ReleaseAll(batch)
		return !overfull
	}
	for i, c := range batch {
		q.limits.Budget.Hold(q.backlog.add(c))
		batch[i] = tunnel.Chunk{}
	}
	q.noteFull()
	q.cond.Broadcast()
	return true
}

func (q *recvQueue) ended() bool { return q.discard || q.end != nil }

// take waits for data and moves it to dst; tunnel.Source has the rules.
func (q *recvQueue) take(dst []tunnel.Chunk) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.wait(); err != nil {
		return 0, err
	}
	n, less := q.backlog.take(dst)
	q.took(less)
	return n, nil
}

// read is take for a caller with a buffer of its own.
func (q *recvQueue) read(p []byte) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(p) == 0 {
		return 0, nil
	}
	if err := q.wait(); err != nil {
		return 0, err
	}
	n, less := q.backlog.read(p)
	q.took(less)
	return n, nil
}

func (q *recvQueue) wait() error {
	for {
		switch {
		case q.deadline.Passed():
			return os.ErrDeadlineExceeded
		case !q.backlog.empty():
			return nil
		case q.end != nil:
			return q.end
		}
		q.cond.Wait()
	}
}

// took notes that the reader took something, by which so much less is held.
func (q *recvQueue) took(less int) {
	q.reads++
	if q.full { // a clock for each read would cost more than the read
		q.movedAt = time.Now()
	}
	if less > 0 {
		q.limits.Budget.Give(less)
		q.noteFull()
		q.cond.Broadcast() // for put
	}
}

// finish lets the reader have what is there, then err. The first call counts.
func (q *recvQueue) finish(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == nil {
		q.end = err
	}
	q.cond.Broadcast()
}

// fail frees what is there; the reader gets err from now on.
func (q *recvQueue) fail(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.discard {
		q.end = err
	}
	q.discard = true
	q.took(q.backlog.clear())
	q.cond.Broadcast()
	q.deadline.Set(time.Time{}, &q.cond)
}

func (q *recvQueue) setDeadline(t time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.discard {
		q.deadline.Set(t, &q.cond)
	}
}

// state tells how often data came, and whether all of it was read.
func (q *recvQueue) state() (puts uint64, drained bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.puts, q.backlog.empty()
}

// failure is why the reader will not find an end in order; nil as yet.
func (q *recvQueue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == io.EOF {
		return nil
	}
	return q.end
}

// finished says that nothing more is accepted.
func (q *recvQueue) finished() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.ended()
}
