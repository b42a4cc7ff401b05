package resume

import (
	"errors"

	"konnectivity/tunnel"
)

// ErrContradiction is the error about a peer that claims to have taken what it
// was not sent, or to lack what it said it had taken.
var ErrContradiction = errors.New("the peer contradicts what was sent or acknowledged before")

// copyBelow is the part of a block that payload must fill to be kept by reference:
// one in copyBelow. Less is copied into a block with its neighbours, so that kept
// bytes pin at most a small multiple of themselves.
const copyBelow = 4

const (
	// fewSegs is how many chunks at most are moved to the front of their slice.
	fewSegs = 16

	// idleSegs is the capacity for chunks that an idle connection keeps: those of one
	// write.
	idleSegs = 4

	// leastTaken is what the peer of a closed end that keeps nothing has to take in a
	// window, for the end to wait for another one. By the byte, a window that holds 16 MiB
	// could keep the end, and memory that is short, for years; so it is 34 hours of 30 s.
	leastTaken = 4 << 10
)

// Outgoing is the direction away from an end: the bytes written to it that the
// peer has not acknowledged yet. The zero value is ready to use.
type Outgoing struct {
	base  uint64 // offset at which segs begin: at or before acked
	acked uint64 // the peer has taken all before this offset
	next  uint64 // offset to send next on the present carrier
	end   uint64 // offset behind the last byte; the end is not counted
	heard uint64 // where nothing is kept: the peer has said that it has all before this

	segs     []tunnel.Chunk // the bytes of [base, end)
	cur, pos int            // position of next in segs
	size     int32          // bytes of memory that segs pin: tens of MiB at most

	tailOpen bool // the last of segs may be appended to
	fin      bool // the direction has ended
	void     bool // bytes are not kept once they were sent
	endGiven bool // the present carrier has taken the end
}

// Append takes over c, whose bytes follow those written before.
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
	o.size += int32(c.Size())
}

// Finish ends the direction behind the bytes appended so far.
func (o *Outgoing) Finish() { o.fin = true }

// Finished reports whether Finish was called.
func (o *Outgoing) Finished() bool { return o.fin }

// Kept returns how many bytes wait to be acknowledged.
func (o *Outgoing) Kept() int { return int(o.end - min(o.acked, o.end)) }

// shares returns chunks of the bytes that wait to be acknowledged, to be released by
// themselves. They share their memory with o, to which nothing may be appended meanwhile.
func (o *Outgoing) shares() (all []tunnel.Chunk) {
	skip := int(o.end-o.base) - o.Kept() // part of the first of segs
	for _, c := range o.segs {
		all = append(all, c.Share(skip, c.Len(), 0))
		skip = 0
	}
	return all
}

// Size returns how many bytes of memory the kept bytes pin.
func (o *Outgoing) Size() int { return int(o.size) }

// Sent returns the offset behind the last byte that the present carrier was given, or
// begins at after Rewind.
func (o *Outgoing) Sent() uint64 { return min(o.next, o.end) }

// Unsent reports whether the present carrier lacks bytes, or the end.
func (o *Outgoing) Unsent() bool { return o.next < o.total() }

// Behind returns how many bytes the present carrier was not given yet.
func (o *Outgoing) Behind() int { return int(o.end - o.Sent()) }

// OnlyEnd reports whether the present carrier lacks the end alone.
func (o *Outgoing) OnlyEnd() bool { return o.fin && o.next == o.end }

// total returns the length of the sequence so far, the end included.
func (o *Outgoing) total() uint64 {
	if o.fin {
		return o.end + 1
	}
	return o.end
}

// Next puts into dst the n chunks to give the present carrier next, and counts them as
// sent. fin reports whether the end comes right behind them. The caller must release the
// chunks, and call Given once the carrier has taken them. Their bytes are shared with the
// kept ones: a sender that writes a header before them must restore those bytes.
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

// Given notes that the present carrier has taken the chunks that Next returned.
func (o *Outgoing) Given() {
	o.endGiven = o.next > o.end
	if o.void {
		o.dropSent()
	}
}

// dropSent forgets the bytes that were sent. The end counts only once the carrier has taken
// it: the bytes before it may wait there for room at the peer.
func (o *Outgoing) dropSent() {
	sent := o.next
	if !o.endGiven {
		sent = o.Sent()
	}
	o.drop(max(sent, o.acked))
}

// Ack notes that the peer has taken all before offset. An offset below an earlier one
// changes nothing. One above the bytes that the peer can have is ErrContradiction.
func (o *Outgoing) Ack(offset uint64) error {
	if offset > o.next {
		return ErrContradiction
	}
	if offset > o.acked {
		o.drop(offset)
	}
	return nil
}

// Advances reports whether a peer that has taken all before offset has taken leastTaken
// since the call before that reported it. It is for a direction whose bytes are not kept
// until they are acknowledged.
func (o *Outgoing) Advances(offset uint64) bool {
	if offset < o.heard+leastTaken {
		return false
	}
	o.heard = offset
	return true
}

// Rewind prepares for a new carrier: the peer has taken all before offset. An offset that
// contradicts earlier ones is ErrContradiction.
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

// drop forgets the bytes before offset.
func (o *Outgoing) drop(offset uint64) {
	o.acked = offset
	n := 0
	for n < len(o.segs) && o.base+uint64(o.segs[n].Len()) <= offset {
		o.base += uint64(o.segs[n].Len())
		o.size -= int32(o.segs[n].Size())
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

// forget removes the first n of segs, which were released. A few that are left move to the
// front, so that a steady flow reuses the same slice; an idle connection keeps a small one.
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

// Done reports whether the peer has taken all bytes and the end.
func (o *Outgoing) Done() bool { return o.fin && o.acked == o.end+1 }

// Void forgets the bytes that were sent, now and from now on. Only bytes that the present
// carrier was not given yet remain.
func (o *Outgoing) Void() {
	o.void = true
	o.dropSent()
}

// Release frees all memory, once the connection is over.
func (o *Outgoing) Release() {
	tunnel.ReleaseAll(o.segs)
	o.segs, o.tailOpen, o.cur, o.pos, o.size = nil, false, 0, 0, 0
	o.base, o.next, o.acked = o.end, o.total(), o.total()
}
