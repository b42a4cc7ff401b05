package tunnel

import (
	"io"
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

	// batch is here and not on the stack of pump, which TLS under it fills
	// to 4 KiB; a little more, and every connection would take 8.
	batch [batchSize]Chunk
}

func newDirection(r *Relay, up bool, dst, src Conn) *direction {
	f := r.Flow
	return &direction{relay: r, dst: dst, src: src, in: src.In(), out: dst.Out(), held: &f.held[side(up)], count: f.counters(up), pace: r.pace(up)}
}

// delivers makes src deliver its bytes, if it can and dst takes them on the
// spot; else it returns false, and pump is to be run.
func (d *direction) delivers() bool {
	if !d.out.Nonblocking() || !d.in.Deliver(d) {
		return false
	}
	// Most often nothing has arrived yet, and no goroutine is needed.
	if n, err := d.in.ReadChunks(d.batch[:]); n > 0 || err != nil {
		go func() {
			if d.pass(n, err) {
				d.pump()
			}
		}()
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
	if n > 0 {
		d.count.add(n)
	}
	return n
}

// Flush implements Receiver.
func (d *direction) Flush() { d.out.Flush() }

// Ready implements Receiver. Run joins the goroutine: it returns only
// when the direction has ended, and this goroutine is the last to see that. Where
// run has returned ErrGoesOn, over is called no sooner.
func (d *direction) Ready() { go d.pump() }

// End implements Receiver.
func (d *direction) End() { d.pass(0, io.EOF) }

// Fail implements Receiver. It is called if src has failed behind a dst that
// takes nothing, and bounds how long earlier bytes may take to be delivered.
func (d *direction) Fail(cause error) {
	d.relay.cause.CompareAndSwap(nil, &cause)
	d.relay.watchdog.limit(drainTime)
}

// pump moves bytes until the direction has ended, or until a Source that
// delivers has nothing more for now.
func (d *direction) pump() {
	for d.pass(d.in.ReadChunks(d.room())) {
	}
}

// room returns where the next chunks go. Directions that share a Pace
// take turns, which are to be short.
func (d *direction) room() []Chunk {
	if d.pace.active() {
		return d.batch[:1]
	}
	return d.batch[:]
}

// pass hands on n chunks of batch, or the end, which it reports. It returns
// whether there may be more to read.
func (d *direction) pass(n int, err error) bool {
	if n == 0 && err == nil {
		return false
	}
	if err == nil {
		if err = d.move(n); err == nil {
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

func (d *direction) move(n int) error {
	size := LenAll(d.batch[:n])
	d.held.Store(true)
	if d.count.own()+int64(size) > takenUnread {
		d.relay.watchdog.lookSoon()
	}
	if d.pace.active() {
		d.pace.wait(size, d.relay.cut.Load)
	}
	err := d.out.WriteChunks(d.batch[:n])
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
