package legacy

import (
	"io"
	"os"
	"sync"
	"time"

	"konnectivity/tunnel"
)

const (
	// joinBelow is the payload that is copied behind the payload before it instead
	// of keeping a block of its own, so that many small packets do not pin a
	// multiple of their size.
	joinBelow = 1 << 10

	// joinBlock is the payload of a block that small packets share: the
	// smallest class of blocks.
	joinBlock = 2<<10 - tunnel.Headroom
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
	waiting  tunnel.ChunkQueue
	end      error // what the reader gets once nothing waits
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
	held := q.waiting.Held()
	for i, c := range batch {
		if c.Len() > joinBelow {
			q.waiting.Push(c)
		} else {
			q.waiting.PushCopy(c.Bytes(), joinBlock)
			c.Release()
		}
		batch[i] = tunnel.Chunk{}
	}
	q.limits.Budget.Hold(q.waiting.Held() - held)
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
	held := q.waiting.Held()
	n := q.waiting.Take(dst)
	q.took(held - q.waiting.Held())
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
	held := q.waiting.Held()
	n := q.waiting.Read(p)
	q.took(held - q.waiting.Held())
	return n, nil
}

func (q *recvQueue) wait() error {
	for {
		switch {
		case q.deadline.Passed():
			return os.ErrDeadlineExceeded
		case !q.waiting.Empty():
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
	held := q.waiting.Held()
	q.waiting.Clear()
	q.took(held)
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
	return q.puts, q.waiting.Empty()
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
