package legacy

import (
	"io"
	"os"
	"sync"
	"time"

	"konnectivity/tunnel"
)

const (
	// maxPause is how long the stream that connections share waits for the
	// reader of an overfull one since that last took something. A sender of the
	// old protocol can be slowed down in no other way, and what a slow client
	// reads shows in jerks: kernels open a full window by some 400 KB at a time.
	// So whoever takes 100 KB/s loses nothing, and a reader that takes nothing
	// costs its neighbours one pause.
	maxPause = 5 * time.Second

	// grpcWindow is what gRPC takes from a peer before anybody has read it:
	// HTTP/2's first window. The server keeps it from growing.
	grpcWindow = 64 << 10

	// lastBuffer is what a connection may hold once its client's memory is used
	// up: some small messages, and no block of a record.
	lastBuffer = 15 << 10

	// joinBelow is the payload that is added to the block before it instead
	// of keeping one of its own, so that many small packets do not pin a
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
	chunks   []tunnel.Chunk
	tail     tunnel.Chunk // the last chunk's whole block while it has room; else empty
	held     int
	end      error // what the reader gets once chunks is empty
	discard  bool  // nobody reads any more
	deadline deadline

	puts, reads uint64
	pauseReads  uint64    // reads as the last pause began while it was not full
	movedAt     time.Time // when the reader last took something while full
	full        bool
	stall       *time.Timer
	stallReads  uint64
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
		q.append(c)
		batch[i] = tunnel.Chunk{}
	}
	q.noteFull()
	q.cond.Broadcast()
	return true
}

func (q *recvQueue) ended() bool { return q.discard || q.end != nil }

// makeRoom waits within the rules until size more may be held.
func (q *recvQueue) makeRoom(size int) bool {
	if q.block {
		return q.makeRoomAlone(size)
	}
	if q.fits(size, 1) {
		return true
	}
	q.pause(size)
	if q.ended() || q.fits(size, 1) {
		return true
	}
	return q.fits(size, 2)
}

// makeRoomAlone waits for the reader of a stream that nobody shares, which holds
// up its sender alone. While it waits gRPC gathers a window more, so that counts
// as held. Where the client has no memory left, the stream is not to go on with
// more than lastBuffer: those that hold much are to make room, not those that
// begin.
func (q *recvQueue) makeRoomAlone(size int) bool {
	if q.crowded() {
		q.limits.Budget.add(grpcWindow)
		for q.crowded() && !q.ended() {
			q.cond.Wait()
		}
		q.limits.Budget.add(-grpcWindow)
	}
	return q.held > 0 || size <= lastBuffer || q.limits.Budget.free() > 0
}

// crowded says whether a stream that nobody shares has enough waiting: less
// than connBuffer where memory gets scarce.
func (q *recvQueue) crowded() bool {
	free := int(max(q.limits.Budget.free()/4, 0))
	return q.held > min(q.limits.connBuffer, free)
}

// fits says whether size more stay within times the connection's share: a
// quarter of what is left of the budget, but always connBuffer, and a little
// where nothing is left: that much, or one message of whatever size.
func (q *recvQueue) fits(size, times int) bool {
	if q.held == 0 {
		return true
	}
	free, share := int(q.limits.Budget.free()), q.limits.connBuffer
	if free <= 0 {
		share = min(share, lastBuffer)
	}
	return q.held+size <= max(free/4, share)*times
}

// pause waits for the reader to make room, for as long as it moves: for one that
// takes nothing maxPause in all, however many batches come.
func (q *recvQueue) pause(size int) {
	if !q.full && (q.movedAt.IsZero() || q.reads != q.pauseReads) { // where memory is short, or for a batch of more than connBuffer on its own
		q.movedAt, q.pauseReads = time.Now(), q.reads
	}
	left := func() time.Duration { return maxPause - time.Since(q.movedAt) }
	if left() <= 0 {
		return
	}
	wake := time.AfterFunc(left(), func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		q.cond.Broadcast()
	})
	defer wake.Stop()
	for left() > 0 && !q.ended() && !q.fits(size, 1) {
		wake.Reset(left())
		q.cond.Wait()
	}
}

func (q *recvQueue) append(c tunnel.Chunk) {
	if n := c.Len(); n <= joinBelow {
		if last := len(q.chunks) - 1; last >= 0 && q.tail.Len() >= q.chunks[last].Len()+n && q.tail.Len() > 0 {
			used := q.chunks[last].Len()
			copy(q.tail.Bytes()[used:], c.Bytes())
			q.chunks[last] = q.tail.Slice(0, used+n)
			c.Release()
			return
		}
		q.tail = tunnel.NewChunk(joinBlock)
		copy(q.tail.Bytes(), c.Bytes())
		c.Release()
		c = q.tail.Slice(0, n)
	} else {
		q.tail = tunnel.Chunk{}
	}
	q.chunks = append(q.chunks, c)
	q.hold(c.Size())
}

func (q *recvQueue) hold(size int) {
	q.held += size
	q.limits.Budget.add(size)
}

// noteFull keeps the metric and the stall watch in step with held.
func (q *recvQueue) noteFull() {
	full := q.held > q.limits.connBuffer || q.full && q.held > q.limits.connBuffer/2
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
	if !q.block { // nobody else waits for a stream that is not shared
		q.stallReads = q.reads
		q.stall = time.AfterFunc(q.limits.stallTimeout, q.checkStall)
	}
}

func (q *recvQueue) checkStall() {
	q.mu.Lock()
	stalled := q.full && q.reads == q.stallReads
	if q.full && !stalled {
		q.stallReads = q.reads
		q.stall.Reset(q.limits.stallTimeout)
	}
	q.mu.Unlock()
	if stalled {
		q.onStall()
	}
}

// take waits for data and moves it to dst; tunnel.Source has the rules.
func (q *recvQueue) take(dst []tunnel.Chunk) (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.wait(); err != nil {
		return 0, err
	}
	n := copy(dst, q.chunks)
	size := 0
	for _, c := range dst[:n] {
		size += c.Size()
	}
	clear(q.chunks[:n])
	q.took(n, size)
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
	n := copy(p, q.chunks[0].Bytes())
	if n < q.chunks[0].Len() {
		if len(q.chunks) == 1 {
			q.tail = tunnel.Chunk{} // its front no longer lines up
		}
		q.chunks[0] = q.chunks[0].Slice(n, q.chunks[0].Len())
		q.moved()
		return n, nil
	}
	size := q.chunks[0].Size()
	q.chunks[0].Release()
	q.chunks[0] = tunnel.Chunk{}
	q.took(1, size)
	return n, nil
}

func (q *recvQueue) wait() error {
	for {
		switch {
		case q.deadline.passed:
			return os.ErrDeadlineExceeded
		case len(q.chunks) > 0:
			return nil
		case q.end != nil:
			return q.end
		}
		q.cond.Wait()
	}
}

func (q *recvQueue) moved() {
	q.reads++
	if q.full { // a clock for each read would cost more than the read
		q.movedAt = time.Now()
	}
}

// took accounts for the first n chunks, which were handed out.
func (q *recvQueue) took(n, size int) {
	if q.chunks = q.chunks[n:]; len(q.chunks) == 0 {
		q.chunks, q.tail = nil, tunnel.Chunk{} // an idle connection holds nothing
	}
	q.moved()
	q.hold(-size)
	q.noteFull()
	q.cond.Broadcast() // for put
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
	size := 0
	for _, c := range q.chunks {
		size += c.Size()
	}
	tunnel.ReleaseAll(q.chunks)
	q.took(len(q.chunks), size)
	q.deadline.set(time.Time{}, &q.cond)
}

func (q *recvQueue) setDeadline(t time.Time) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if !q.discard {
		q.deadline.set(t, &q.cond)
	}
}

// state tells how often data came, and whether all of it was read.
func (q *recvQueue) state() (puts uint64, drained bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.puts, len(q.chunks) == 0
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
