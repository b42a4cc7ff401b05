package legacy

import (
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

func newTestQueue(limits Limits, block bool) (*recvQueue, *atomic.Int64) {
	limits = limits.withDefaults()
	stalls := &atomic.Int64{}
	q := &recvQueue{limits: &limits, metrics: NoMetrics{}, block: block, onStall: func() { stalls.Add(1) }}
	q.init()
	return q, stalls
}

func chunks(n, size int) []tunnel.Chunk {
	var out []tunnel.Chunk
	for range n {
		out = append(out, tunnel.NewChunk(size))
	}
	return out
}

// takes reads chunks that wait, at most n.
func (q *recvQueue) takes(n int) { _, _ = q.take(make([]tunnel.Chunk, n)) }

// For how long a queue on a shared stream pauses it, and when its reader counts as
// stalled, in fake time.
func TestPausesAndStalls(t *testing.T) {
	small := func() Limits { return Limits{connBuffer: 32 << 10, Budget: shares.NewBudget(1 << 20)} }
	poor := func() Limits { return Limits{Budget: shares.NewBudget(1)} }
	for name, c := range map[string]struct {
		limits Limits
		play   func(t *testing.T, q *recvQueue) (paused time.Duration)
		want   time.Duration
		stalls int64
	}{
		"a full queue whose reader moves a little": {small(), func(_ *testing.T, q *recvQueue) time.Duration {
			q.put(chunks(4, 16<<10))
			for range 10 {
				time.Sleep(defaultStallTimeout * 9 / 10)
				_, _ = q.read(make([]byte, 100))
			}
			return 0
		}, 0, 0},
		"a full queue whose reader no longer moves": {small(), func(_ *testing.T, q *recvQueue) time.Duration {
			q.put(chunks(4, 16<<10))
			_, _ = q.read(make([]byte, 100))
			time.Sleep(2*defaultStallTimeout + time.Second)
			return 0
		}, 0, 1},
		"a queue that is not full and never read": {Limits{}, func(_ *testing.T, q *recvQueue) time.Duration {
			q.put(chunks(4, 16<<10))
			time.Sleep(time.Hour)
			return 0
		}, 0, 0},
		"a look that comes late, as the queue is full anew": {small(), func(_ *testing.T, q *recvQueue) time.Duration {
			q.put(chunks(4, 16<<10))
			const half = defaultStallTimeout / stallLooks / 2
			time.Sleep(defaultStallTimeout - half)
			q.mu.Lock()
			time.Sleep(half) // the last look waits for the lock
			taken, held := make([]tunnel.Chunk, 4), q.waiting.Held()
			tunnel.ReleaseAll(taken[:q.waiting.Take(taken)])
			q.took(held)
			for _, c := range chunks(4, 16<<10) {
				q.waiting.Push(c)
			}
			q.limits.Budget.Hold(q.waiting.Held())
			q.noteFull()
			q.mu.Unlock()
			return 0
		}, 0, 0},
		"a reader that takes nothing": {small(), func(t *testing.T, q *recvQueue) time.Duration {
			n, took := putAll(q, 8<<10)
			testutil.AtMost(t, q.limits.Budget.Used(), 512<<10, "bytes that were held")
			testutil.AtLeast(t, n, 20, "packets that were")
			return took
		}, maxPause, 0},
		"a reader that moves once more": {small(), func(_ *testing.T, q *recvQueue) time.Duration {
			putAll(q, 8<<10)
			time.Sleep(time.Second)
			_, _ = q.read(make([]byte, 1))
			_, took := putAll(q, 8<<10)
			return took
		}, maxPause, 0},
		"no memory is left": {poor(), func(t *testing.T, q *recvQueue) time.Duration {
			n, took := putAll(q, 4<<10)
			testutil.Between(t, n, 1, 2*lastBuffer/(4<<10), "packets that were held")
			return took
		}, maxPause, 0},
		"one message at a time, however large": {poor(), func(t *testing.T, q *recvQueue) time.Duration {
			start := time.Now()
			for range 3 {
				testutil.Equal(t, q.put(chunks(1, 60<<10)), true, "it is taken")
				q.takes(8)
			}
			return time.Since(start)
		}, 0, 0},
		"a reader that makes room soon": {Limits{connBuffer: 40 << 10, Budget: shares.NewBudget(1)}, func(t *testing.T, q *recvQueue) time.Duration {
			q.put(chunks(2, 16<<10))
			time.AfterFunc(5*time.Millisecond, func() { q.takes(2) })
			start := time.Now()
			testutil.Equal(t, q.put(chunks(1, 16<<10)), true, "it is taken")
			return time.Since(start)
		}, 5 * time.Millisecond, 0},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			q, stalls := newTestQueue(c.limits, false)
			defer q.fail(io.EOF)
			testutil.Equal(t, c.play(t, q), c.want, "how long the stream paused")
			synctest.Wait()
			testutil.Equal(t, stalls.Load(), c.stalls, "stalls")
		})
	}
}

// putAll puts messages until one is refused.
func putAll(q *recvQueue, size int) (n int, took time.Duration) {
	start := time.Now()
	for q.put(chunks(1, size)) {
		n++
	}
	return n, time.Since(start)
}

// Many that stall together cost their neighbours one pause, not one each.
func TestSharedPauseOfManyReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limits := Limits{connBuffer: 32 << 10, Budget: shares.NewBudget(1 << 20)}
		var all []*recvQueue
		start := time.Now()
		for range 5 {
			q, _ := newTestQueue(limits, false)
			defer q.fail(io.EOF)
			q.put(chunks(5, 8<<10)) // full
			all = append(all, q)
		}
		for _, q := range all {
			putAll(q, 8<<10)
		}
		testutil.Equal(t, time.Since(start), maxPause, "how long the stream paused in all")
	})
}

// A slow reader loses nothing: on a shared stream one in jerks of almost maxPause,
// whatever is behind it; on a stream of its own any that moves, however little of the
// budget is left.
func TestSlowReaderIsNotReset(t *testing.T) {
	for name, c := range map[string]struct {
		limits Limits
		block  bool
		pause  time.Duration
		take   int
	}{
		"shared": {Limits{connBuffer: 32 << 10, Budget: shares.NewBudget(1 << 20)}, false, maxPause * 9 / 10, 8},
		"alone":  {Limits{Budget: shares.NewBudget(256 << 10)}, true, time.Hour, 1},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			q, stalls := newTestQueue(c.limits, c.block)
			var reader sync.WaitGroup
			defer reader.Wait()
			reader.Go(func() {
				dst := make([]tunnel.Chunk, c.take)
				for taken := 0; taken < 400; {
					time.Sleep(c.pause)
					n, _ := q.take(dst)
					tunnel.ReleaseAll(dst[:n])
					taken += n
				}
			})
			for i := range 400 {
				testutil.Requires(t, q.put(chunks(1, 8<<10)), "reset at packet %d", i)
			}
			reader.Wait()
			testutil.Equal(t, stalls.Load(), 0, "stalls")
			testutil.Equal(t, q.limits.Budget.Used(), 0, "bytes of the budget that are lost")
		})
	}
}

// Streams of their own that are never read hold no more than the budget, gRPC's windows
// counted. A client that has used its share up loses the streams that bring more, and
// another client does not notice.
func TestStreamsOfOneClientKeepToItsShare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const total, streams = 4 << 20, 1000
		budget := shares.NewBudget(total)
		hog := budget.Share()
		var queues []*recvQueue
		var puts sync.WaitGroup
		var refused atomic.Int64
		for range streams {
			q, _ := newTestQueue(Limits{Budget: hog}, true)
			queues = append(queues, q)
			puts.Go(func() {
				for q.put(chunks(1, 8<<10)) {
					if q.failure() != nil {
						return
					}
				}
				refused.Add(1)
			})
			synctest.Wait()
		}
		testutil.Between(t, budget.Used(), total/2, total, "bytes of %d streams", streams)
		testutil.AtLeast(t, refused.Load(), 1, "streams that are refused")
		other, _ := newTestQueue(Limits{Budget: budget.Share()}, true)
		testutil.Equal(t, other.put(chunks(1, 8<<10)), true, "another client's stream is taken")
		for _, q := range append(queues, other) {
			q.fail(io.ErrClosedPipe)
		}
		puts.Wait()
		testutil.Equal(t, budget.Used(), 0, "bytes of the budget are lost")
	})
}
