package audit

import (
	"bytes"
	"sync"
	"time"

	"konnectivity/internal/wait"
)

const (
	// chunkSize is the size of a write at most. Records are shorter: an Identity and 14 texts
	// of maxText bytes have 18 KiB, and one byte is escaped as at most 6.
	chunkSize = 256 << 10

	// queueMax bounds the queue: the records of 16,000 connections that all end at once,
	// as those of an agent that is lost. The writer has as much again in hand.
	queueMax = 8 << 20
)

// queue holds lines that have yet to be written. Any goroutine may add to it.
type queue struct {
	wake    chan struct{} // there is something to take, or a chunk is full
	dropped chan struct{} // a line was dropped, and none before since the last take

	mu     sync.Mutex
	chunks [][]byte
	size   int
	spare  []byte // an empty chunk, or nil
	missed int64  // lines that were dropped since the last take
	total  int64  // lines that were dropped
}

func (q *queue) init() {
	q.wake, q.dropped = make(chan struct{}, 1), make(chan struct{}, 1)
}

// add adds a line, or drops it.
func (q *queue) add(line []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.size+len(line) > queueMax || len(line) > chunkSize {
		q.missLocked(1)
		return
	}
	last := len(q.chunks) - 1
	if last < 0 || len(q.chunks[last])+len(line) > chunkSize {
		q.chunks = append(q.chunks, q.chunkLocked())
		last++
		wait.Signal(q.wake)
	}
	q.chunks[last] = append(q.chunks[last], line...)
	q.size += len(line)
}

func (q *queue) chunkLocked() (c []byte) {
	if c, q.spare = q.spare, nil; c == nil {
		c = make([]byte, 0, chunkSize)
	}
	return c
}

// miss counts lines that were taken and cannot be written.
func (q *queue) miss(lines int) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.missLocked(lines)
}

func (q *queue) missLocked(lines int) {
	if q.missed == 0 && lines > 0 {
		wait.Signal(q.dropped)
	}
	q.missed += int64(lines)
	q.total += int64(lines)
}

// take empties the queue. A record of the lines that were dropped comes last, where they
// would be.
func (q *queue) take(head []byte) (chunks [][]byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	chunks, q.chunks, q.size = q.chunks, nil, 0
	if q.missed > 0 {
		chunks = append(chunks, appendDropped(nil, head, time.Now(), q.missed))
		q.missed = 0
	}
	return chunks
}

// reuse gives back a chunk that was written.
func (q *queue) reuse(chunk []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if cap(chunk) == chunkSize {
		q.spare = chunk[:0]
	}
}

// lost is how many lines were dropped so far.
func (q *queue) lost() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.total
}

// end counts the lines that are left as dropped. It reports whether lines were dropped since
// the last take.
func (q *queue) end() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, chunk := range q.chunks {
		q.missLocked(bytes.Count(chunk, newline))
	}
	q.chunks, q.size = nil, 0
	return q.missed > 0
}
