package tunnel

import (
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// direction is one direction of a relay. It is the Receiver of a Source that
// delivers.
type direction struct {
	relay    *Relay
	dst, src Conn
	in       Source // of src
	out      Sink   // of dst
	held     *atomic.Bool
	count    tally
	pace     *Pace // nil: none
	inOrder  bool  // dst took all bytes of src, and its end
}

// batch is what moves at once. It is not on the stack of pump, which TLS under it fills to
// 4 KiB, and no part of a direction, most of which wait.
type batch [batchSize]Chunk

var batches = sync.Pool{New: func() any { return new(batch) }}

// free returns b to the pool. Its chunks were released.
func (b *batch) free() {
	*b = batch{}
	batches.Put(b)
}

func newDirection(r *Relay, up bool, dst, src Conn) *direction {
	f := r.Flow
	return &direction{relay: r, dst: dst, src: src, in: src.In(), out: dst.Out(), held: &f.held[side(up)], count: f.counters(up), pace: r.pace(up)}
}

// delivers makes src deliver its bytes, if it can and dst takes them on the
// spot; else it returns false, and pump is to be run.
func (d *direction) delivers() bool {
	if !d.out.Nonblocking() || !d.in.Deliver(d) {
		d.in.Rest(d)
		return false
	}
	b := batches.Get().(*batch)
	if n, err := d.in.ReadChunks(b[:]); n > 0 || err != nil {
		go d.pumpFrom(b, n, err)
	} else { // most often: no goroutine is needed
		b.free()
	}
	return true
}

// Take implements Receiver.
func (d *direction) Take(c Chunk) int {
	paced := d.pace.active()
	if paced && !d.pace.try(c.Len(), time.Now()) {
		return 0
	}
	n := d.out.TryWrite(c)
	if paced {
		d.pace.back(c.Len() - n)
	}
	d.count.add(n)
	return n
}

// Flush implements Receiver.
func (d *direction) Flush() { d.out.Flush() }

// Ready implements Receiver. Whoever waits for the outcome joins the goroutine: the
// direction ends on it, last of all.
func (d *direction) Ready() { go d.pump() }

// End implements Receiver.
func (d *direction) End() { d.pass(nil, io.EOF) }

// Fail implements Receiver. It is called if src has failed behind a dst that
// takes nothing, and bounds how long earlier bytes may take to be delivered.
func (d *direction) Fail(cause error) {
	d.relay.cause.CompareAndSwap(nil, &cause)
	d.relay.watchdog.limit(drainTime)
}

// pump moves bytes until the direction has ended, or until a Source that
// delivers or rests has nothing more for now.
func (d *direction) pump() {
	b := batches.Get().(*batch)
	n, err := d.in.ReadChunks(d.room(b))
	d.pumpFrom(b, n, err)
}

// pumpFrom is pump once something was read into b, which it frees.
func (d *direction) pumpFrom(b *batch, n int, err error) {
	for d.pass(b[:n], err) {
		n, err = d.in.ReadChunks(d.room(b))
	}
	b.free()
}

// room returns where the next chunks go. Directions that share a Pace
// take turns, which are to be short.
func (d *direction) room(b *batch) []Chunk {
	if d.pace.active() {
		return b[:1]
	}
	return b[:]
}

// pass hands on chunks, or the end, which it reports. It returns whether there may be
// more to read. If not, another goroutine may have the turn by then.
func (d *direction) pass(chunks []Chunk, err error) bool {
	if len(chunks) == 0 && err == nil {
		return false
	}
	if err == nil {
		if err = d.move(chunks); err == nil {
			return true
		}
	} else if err == io.EOF {
		err = d.closeWrite()
		d.inOrder = err == nil
	}
	d.relay.settle(err)
	d.relay.ended()
	return false
}

func (d *direction) move(chunks []Chunk) error {
	size := LenAll(chunks)
	d.held.Store(true)
	if d.count.own()+int64(size) > takenUnread {
		d.relay.watchdog.lookSoon()
	}
	if d.pace.active() {
		d.pace.wait(size, d.relay.cut.Load)
	}
	err := d.out.WriteChunks(chunks)
	d.held.Store(false)
	if err != nil {
		return &writeError{err}
	}
	d.count.add(size)
	return nil
}

func (d *direction) closeWrite() error {
	if err := d.dst.CloseWrite(); err != nil {
		return &writeError{err}
	}
	return nil
}

// end frees dst once both directions are over and one has failed. A dst that took
// everything in order still delivers it; the processes behind it may want the cause.
func (d *direction) end(cause error) {
	if d.inOrder {
		_ = d.dst.CloseFor(cause)
		return
	}
	_ = d.dst.Reset(cause)
}
