package resume

import (
	"errors"

	"konnectivity/tunnel"
)

// ErrContradiction is the error about a peer that claims to have taken what it
// was not sent, or to lack what it said it had taken.
var ErrContradiction = errors.New("the peer contradicts what was sent or acknowledged before")

// copyBelow is the part of a block that payload must fill to be kept by
// reference; of less a copy is kept together with its neighbours, so that what
// waits for an acknowledgement pins at most a small multiple of itself.
const copyBelow = 4

const (
	// fewSegs is how many chunks are moved rather than left where they are.
	fewSegs = 16

	// idleSegs is how many of them an idle connection has room for: those of one
	// write.
	idleSegs = 4
)

// Outgoing is the direction away from an end: everything written to it that the
// peer has not acknowledged yet. The zero value is ready to use.
type Outgoing struct {
	base  uint64 // where segs begin: at or before acked
	acked uint64 // the peer has all before this
	next  uint64 // to be sent next on the present carrier
	end   uint64 // of what was written, the end not counted

	segs     []tunnel.Chunk // the bytes of [base, end)
	cur, pos int            // where next is in segs
	size     int            // the memory that segs pin

	tailOpen bool // the last of segs is ours to append to
	fin      bool // nothing more will be written
	void     bool // nothing is kept to be sent again
	endGiven bool // the present carrier has taken the end
}

// Append takes c over, whose bytes follow all that was written before.
func (o *Outgoing) Append(c tunnel.Chunk) {
	if o.fin {
		panic("resume: bytes behind the end")
	}
	o.end += uint64(c.Len())
	if c.Size() <= copyBelow*c.Len() {
		o.push(c)
		o.tailOpen = false
		return
	}
	o.copyIn(c.Bytes())
	c.Release()
}

func (o *Outgoing) copyIn(p []byte) {
	if o.tailOpen {
		p = p[o.segs[len(o.segs)-1].Append(p):]
	}
	for len(p) > 0 {
		var c tunnel.Chunk
		if len(o.segs) == 0 && len(p) <= tunnel.RecordRoom {
			c = tunnel.CopyChunk(p) // most messages are acknowledged before the next
		} else {
			c = tunnel.NewChunk(tunnel.RecordRoom).Slice(0, 0)
			c.Append(p)
		}
		p = p[c.Len():]
		o.push(c)
		o.tailOpen = true
	}
}

func (o *Outgoing) push(c tunnel.Chunk) {
	o.segs = append(o.segs, c)
	o.size += c.Size()
}

// Finish ends the direction after all that was appended.
func (o *Outgoing) Finish() { o.fin = true }

// Finished says whether Finish was called.
func (o *Outgoing) Finished() bool { return o.fin }

// Kept is how many bytes wait to be acknowledged.
func (o *Outgoing) Kept() int { return int(o.end - min(o.acked, o.end)) }

// Size is the memory that what is kept pins.
func (o *Outgoing) Size() int { return o.size }

// Sent is up to where carriers were given bytes; the present one begins anew
// below that with each Rewind.
func (o *Outgoing) Sent() uint64 { return min(o.next, o.end) }

// Unsent says whether the present carrier has yet to be given something, the
// end included.
func (o *Outgoing) Unsent() bool { return o.next < o.total() }

// OnlyEnd says whether of what is unsent nothing is left but the end.
func (o *Outgoing) OnlyEnd() bool { return o.fin && o.next == o.end }

// total is the length of the sequence as far as it is known.
func (o *Outgoing) total() uint64 {
	if o.fin {
		return o.end + 1
	}
	return o.end
}

// Next returns in dst, and counts as sent, what the present carrier is to be
// given next, and says whether the end comes right behind it. The caller must
// release the chunks, and call Given once the carrier has taken them. Their bytes are
// shared with what is kept, so whoever puts a frame's header before them has to restore
// what was there.
func (o *Outgoing) Next(dst []tunnel.Chunk) (n int, fin bool) {
	for n < len(dst) && o.cur < len(o.segs) {
		seg := o.segs[o.cur]
		if o.pos < seg.Len() {
			dst[n] = seg.Slice(o.pos, seg.Len()).Keep()
			n++
			o.next += uint64(seg.Len() - o.pos)
			o.pos = seg.Len()
		}
		if o.cur == len(o.segs)-1 {
			break // more may be appended to it
		}
		o.cur, o.pos = o.cur+1, 0
	}
	if o.next == o.end && o.fin {
		o.next, fin = o.end+1, true
	}
	if o.void {
		o.dropSent()
	}
	return n, fin
}

// Given notes that the present carrier has taken all that Next has returned.
func (o *Outgoing) Given() {
	o.endGiven = o.next > o.end
	if o.void {
		o.dropSent()
	}
}

// dropSent forgets what was sent. The end is not over with before the carrier has it:
// what goes before that may wait for the peer to make room.
func (o *Outgoing) dropSent() {
	sent := o.next
	if !o.endGiven {
		sent = o.Sent()
	}
	o.drop(max(sent, o.acked))
}

// Ack takes note that the peer has taken all before offset. One that was
// overtaken by a later one changes nothing. No honest peer has taken more than
// the present carrier was given or it said itself when that was attached.
func (o *Outgoing) Ack(offset uint64) error {
	if offset > o.next {
		return ErrContradiction
	}
	if offset > o.acked {
		o.drop(offset)
	}
	return nil
}

// Rewind prepares for a new carrier, at whose other end the peer has taken all
// before offset.
func (o *Outgoing) Rewind(offset uint64) error {
	if offset < o.acked || offset > o.next {
		return ErrContradiction
	}
	o.drop(offset)
	o.next, o.endGiven = offset, false
	o.cur, o.pos = 0, 0
	for left := int(min(offset, o.end) - o.base); left > 0; {
		n := o.segs[o.cur].Len()
		if left < n || o.cur == len(o.segs)-1 {
			o.pos = left
			break
		}
		left -= n
		o.cur++
	}
	return nil
}

// drop forgets what comes before offset.
func (o *Outgoing) drop(offset uint64) {
	o.acked = offset
	n := 0
	for n < len(o.segs) && o.base+uint64(o.segs[n].Len()) <= offset {
		o.base += uint64(o.segs[n].Len())
		o.size -= o.segs[n].Size()
		o.segs[n].Release()
		o.segs[n] = tunnel.Chunk{}
		n++
	}
	o.forget(n)
	if len(o.segs) == 0 {
		o.tailOpen, o.cur, o.pos = false, 0, 0
		return
	}
	if o.cur -= n; o.cur < 0 {
		o.cur, o.pos = 0, 0
	}
}

// forget takes n out of segs, which were released. Where few are left they move
// to the front, so that a steady flow appends to the same few places; an idle
// connection holds next to no memory.
func (o *Outgoing) forget(n int) {
	rest := o.segs[n:]
	switch {
	case len(rest) > fewSegs:
		o.segs = rest
	case len(rest) == 0 && cap(o.segs) > idleSegs:
		o.segs = nil
	case n > 0:
		left := copy(o.segs, rest)
		clear(o.segs[left:])
		o.segs = o.segs[:left]
	}
}

// Done says whether the peer has taken everything, and the end.
func (o *Outgoing) Done() bool { return o.fin && o.acked == o.end+1 }

// Void gives up what is kept to be sent again, now and from now on. Only what
// the present carrier was not yet given remains.
func (o *Outgoing) Void() {
	o.void = true
	o.dropSent()
}

// Release frees what is kept, at the end of it all.
func (o *Outgoing) Release() {
	tunnel.ReleaseAll(o.segs)
	o.segs, o.tailOpen, o.cur, o.pos, o.size = nil, false, 0, 0, 0
	o.base, o.next, o.acked = o.end, o.total(), o.total()
}
