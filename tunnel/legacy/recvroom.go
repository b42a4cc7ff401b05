package legacy

import "time"

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
)

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
		q.limits.Budget.Hold(grpcWindow)
		for q.crowded() && !q.ended() {
			q.cond.Wait()
		}
		q.limits.Budget.Give(grpcWindow)
	}
	return q.waiting.Held() > 0 || size <= lastBuffer || q.limits.Budget.Left() > 0
}

// crowded says whether a stream that nobody shares has enough waiting: less
// than connBuffer where memory gets scarce.
func (q *recvQueue) crowded() bool {
	free := int(max(q.limits.Budget.Left()/4, 0))
	return q.waiting.Held() > min(q.limits.connBuffer, free)
}

// fits says whether size more stay within times the connection's share: a
// quarter of what is left of the budget, but always connBuffer, and a little
// where nothing is left: that much, or one message of whatever size.
func (q *recvQueue) fits(size, times int) bool {
	if q.waiting.Held() == 0 {
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

// noteFull keeps the metric and the stall watch in step with held.
func (q *recvQueue) noteFull() {
	full := q.waiting.Held() > q.limits.connBuffer || q.full && q.waiting.Held() > q.limits.connBuffer/2
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
	// This may have waited for the lock while the queue was emptied and became full anew.
	late := time.Since(q.movedAt) < q.limits.stallTimeout
	stalled := q.full && q.reads == q.stallReads && !late
	if q.full && !stalled {
		q.stallReads = q.reads
		q.stall.Reset(q.limits.stallTimeout)
	}
	q.mu.Unlock()
	if stalled {
		q.onStall()
	}
}
