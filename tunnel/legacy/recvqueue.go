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

	// maxPause is how long the stream that connections share waits for the
	// reader of an overfull one, from when that last took something. A sender of the
	// old protocol can be slowed down in no other way, and slow clients
	// read in jerks: kernels open a full window by some 400 KB at a time.
	// So a reader of 100 KB/s loses nothing, and a reader that takes nothing
	// costs its neighbours one pause.
	maxPause = 5 * time.Second

	// stallLooks is the number of looks at a full queue within stallTimeout.
	stallLooks = 10

	// grpcWindow is what gRPC takes from a peer ahead of its reader:
	// HTTP/2's first window. The server keeps it from growing.
	grpcWindow = 64 << 10

	// lastBuffer is what a connection may hold once its client's memory is used
	// up: some small messages, and no block of a record.
	lastBuffer = 15 << 10
)

// recvQueue holds received bytes until they are read. One goroutine puts and one reads;
// any may call the other methods.
//
// Old peers have no credit, so the queue bounds what it holds. Above
// connBuffer it is full: its reader must move within stallTimeout. Above its
// share of the budget, the stream pauses for a reader that moves, as the only
// way there is to slow the sender down; at twice its share it is reset.
type recvQueue struct {
	limits  *Limits
	metrics Metrics
	segment Segment
	block   bool   // put waits while full: the stream has this connection alone
	onStall func() // resets the connection; called without the lock

	mu       sync.Mutex
	cond     sync.Cond
	waiting  tunnel.ChunkQueue
	end      error // the reader gets it once nothing waits
	discard  bool  // the reader is gone
	deadline tunnel.Deadline

	puts, reads uint64
	full        bool
	movedAt     time.Time // when the reader last took something while full, or a pause began
	pauseReads  uint64    // reads as the last pause began while not full
	stall       *time.Timer
	stallReads  uint64 // reads at the last look at a full queue
	still       int    // such looks since the reader has moved
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
	return q.readWith(func() int { return q.waiting.Take(dst) })
}

// read is take for a caller with a buffer of its own.
func (q *recvQueue) read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	return q.readWith(func() int { return q.waiting.Read(p) })
}

func (q *recvQueue) readWith(take func() int) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.wait(); err != nil {
		return 0, err
	}
	held := q.waiting.Held()
	n := take()
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

// took notes a read, which has freed less bytes.
func (q *recvQueue) took(less int) {
	q.reads++
	if q.full { // a clock for each read would cost more than the read
		q.movedAt = time.Now()
	}
	if less > 0 {
		q.limits.Budget.Hold(-less)
		q.noteFull()
		q.cond.Broadcast() // for put
	}
}

// finish lets the reader have the bytes that wait, then err. The first call counts.
func (q *recvQueue) finish(err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == nil {
		q.end = err
	}
	q.cond.Broadcast()
}

// fail frees the bytes that wait; the reader gets err from now on.
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

// state returns how many batches came, and whether all of them were read.
func (q *recvQueue) state() (puts uint64, drained bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.puts, q.waiting.Empty()
}

// failure returns the error that the reader finds instead of an end in order; nil where
// there is none yet.
func (q *recvQueue) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.end == io.EOF {
		return nil
	}
	return q.end
}

// makeRoom waits within the rules until size more may be held.
func (q *recvQueue) makeRoom(size int) bool {
	if q.block {
		return q.makeRoomAlone(size)
	}
	if q.fits(size, 1) {
		return true
	}
	q.pause(size)
	return q.ended() || q.fits(size, 2)
}

// makeRoomAlone waits for the reader of a stream with one connection, which holds
// up its sender alone. While it waits gRPC gathers a window more, so that counts
// as held. Where the client has no memory left, the stream must not go on with
// more than lastBuffer: streams that hold much are to make room, not those that
// begin.
func (q *recvQueue) makeRoomAlone(size int) bool {
	if q.crowded() {
		q.limits.Budget.Hold(grpcWindow)
		for q.crowded() && !q.ended() {
			q.cond.Wait()
		}
		q.limits.Budget.Hold(-grpcWindow)
	}
	return !q.waiting.Empty() || size <= lastBuffer || q.limits.Budget.Left() > 0
}

// crowded reports whether a stream with one connection holds enough: connBuffer, or
// less where memory gets scarce.
func (q *recvQueue) crowded() bool {
	free := int(max(q.limits.Budget.Left()/4, 0))
	return q.waiting.Held() > min(q.limits.connBuffer, free)
}

// fits reports whether size more stay within times the connection's share: a
// quarter of what the budget has left, but at least connBuffer; and where the budget has
// nothing left, lastBuffer, or one message of whatever size.
func (q *recvQueue) fits(size, times int) bool {
	if q.waiting.Empty() {
		return true
	}
	free, share := int(q.limits.Budget.Left()), q.limits.connBuffer
	if free <= 0 {
		share = min(share, lastBuffer)
	}
	return q.waiting.Held()+size <= max(free/4, share)*times
}

// pause waits for the reader to make room, for as long as it moves: for one that
// takes nothing maxPause in all, however many batches come.
func (q *recvQueue) pause(size int) {
	if !q.full && (q.movedAt.IsZero() || q.reads != q.pauseReads) { // where memory is short, or for a batch of more than connBuffer on its own
		q.movedAt, q.pauseReads = time.Now(), q.reads
	}
	var end tunnel.Deadline
	defer end.Stop()
	for {
		end.Set(q.movedAt.Add(maxPause), &q.cond)
		if end.Passed() || q.ended() || q.fits(size, 1) {
			return
		}
		q.cond.Wait()
	}
}

// noteFull keeps the metric and the stall timer in step with the bytes held.
func (q *recvQueue) noteFull() {
	held := q.waiting.Held()
	full := held > q.limits.connBuffer || q.full && held > q.limits.connBuffer/2
	if full == q.full {
		return
	}
	q.full = full
	if !full {
		q.metrics.Full(q.segment, -1)
		if q.stall != nil {
			q.stall.Stop()
		}
		return
	}
	q.metrics.Full(q.segment, 1)
	q.movedAt = time.Now()
	if !q.block { // a stream with one connection holds up no other
		q.stallReads, q.still = q.reads, 0
		q.stall = time.AfterFunc(q.limits.stallTimeout/stallLooks, q.checkStall)
	}
}

// checkStall resets the connection if its queue is full and its reader has not moved
// for stallTimeout. It may be late: the queue can have been emptied and filled anew. Looks
// count, not the clock: a process that was stopped was no reader's fault.
func (q *recvQueue) checkStall() {
	q.mu.Lock()
	if q.still++; q.reads != q.stallReads {
		q.stallReads, q.still = q.reads, 0
	}
	stalled := q.full && q.still >= stallLooks
	if q.full && !stalled {
		q.stall.Reset(q.limits.stallTimeout / stallLooks)
	}
	q.mu.Unlock()
	if stalled {
		q.onStall()
	}
}
