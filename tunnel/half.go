package tunnel

import (
	"io"
	"sync/atomic"
	"time"
)

// half is one direction of a relay. It is the Receiver of a Source that
// delivers.
type half struct {
	relay    *Relay
	watch    *watch
	dst, src Conn
	in       Source // of src
	out      Sink   // of dst
	held     *atomic.Bool
	count    tally
	pace     *Pace // nil: none
	inOrder  bool  // all that src sent, and its end, was handed to dst

	// batch is here and not on the stack of pump, which TLS under it fills
	// to 4 KiB; a little more, and every connection would take 8.
	batch [batchSize]Chunk
}

func newHalf(r *Relay, w *watch, up bool, dst, src Conn) *half {
	f := r.Flow
	return &half{relay: r, watch: w, dst: dst, src: src, in: src.In(), out: dst.Out(), held: &f.held[side(up)], count: f.counters(up), pace: r.pace(up)}
}

// delivered has src deliver its bytes, if it can and dst takes them on the
// spot; else it returns false, and pump is to be run.
func (h *half) delivered() bool {
	if !h.out.Nonblocking() || !h.in.Deliver(h) {
		return false
	}
	// Most often nothing has come as yet, and no goroutine is needed.
	if n, err := h.in.ReadChunks(h.batch[:]); n > 0 || err != nil {
		go func() {
			if h.pass(n, err) {
				h.pump()
			}
		}()
	}
	return true
}

// Take implements Receiver.
func (h *half) Take(c Chunk) int {
	paced := h.pace.active()
	if paced && !h.pace.try(c.Len(), time.Now()) {
		return 0
	}
	n := h.out.TryWrite(c)
	if paced {
		h.pace.back(c.Len() - n)
	}
	if n > 0 {
		h.count.add(n)
	}
	return n
}

// Flush implements Receiver.
func (h *half) Flush() { h.out.Flush() }

// Ready implements Receiver. The goroutine is joined by Run, which returns only
// when the direction has ended, and this goroutine is the last to see that. Where
// run has returned ErrGoesOn, nobody waits for it, but over is called no sooner.
func (h *half) Ready() { go h.pump() }

// End implements Receiver.
func (h *half) End() { h.pass(0, io.EOF) }

// Fail implements Receiver. It is called if src has failed behind a dst that
// takes nothing, and bounds how long what came before may take to be delivered.
func (h *half) Fail(cause error) {
	h.relay.cause.CompareAndSwap(nil, &cause)
	h.watch.limit(drainTime)
}

// pump moves bytes until the direction has ended, or until a Source that
// delivers has nothing more for now.
func (h *half) pump() {
	for h.pass(h.in.ReadChunks(h.atOnce())) {
	}
}

// atOnce returns the room for what to move next. Directions that share a Pace
// take turns, which are to be short.
func (h *half) atOnce() []Chunk {
	if h.pace.active() {
		return h.batch[:1]
	}
	return h.batch[:]
}

// pass hands on n chunks of batch, or the end, which it reports. It returns
// whether there may be more to read.
func (h *half) pass(n int, err error) bool {
	if n == 0 && err == nil {
		return false
	}
	if err == nil {
		if err = h.move(n); err == nil {
			return true
		}
	} else if err == io.EOF {
		err = h.closeWrite()
		h.inOrder = err == nil
	}
	h.relay.settle(h.watch, err)
	h.relay.ended()
	return false
}

func (h *half) move(n int) error {
	size := 0
	for _, c := range h.batch[:n] {
		size += c.Len()
	}
	h.held.Store(true)
	if h.count.own()+int64(size) > takenUnread {
		h.watch.lookSoon()
	}
	if h.pace.active() {
		h.pace.wait(size, h.relay.wasCut)
	}
	err := h.out.WriteChunks(h.batch[:n])
	h.held.Store(false)
	if err != nil {
		return &writeError{err}
	}
	h.count.add(size)
	return nil
}

func (h *half) closeWrite() error {
	if err := h.dst.CloseWrite(); err != nil {
		return &writeError{err}
	}
	return nil
}

// end frees dst once both directions are over and one has failed. What was
// handed to it in order is still delivered.
func (h *half) end(cause error) {
	if h.inOrder {
		_ = h.dst.CloseFor(cause) // what comes after this hop may care
		return
	}
	_ = h.dst.Reset(cause)
}
