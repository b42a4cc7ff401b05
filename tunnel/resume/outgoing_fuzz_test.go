package resume

import (
	"bytes"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// model is Outgoing as plainly as it can be written.
type model struct {
	all         []byte
	acked, next int
	fin, void   bool
	endGiven    bool // the present carrier has taken the end
}

// forget is what becomes of what was sent once nothing is sent again.
func (m *model) forget() {
	if !m.void {
		return
	}
	m.acked = max(m.acked, min(m.next, len(m.all)))
	if m.endGiven {
		m.acked = m.next
	}
}

func (m *model) total() int {
	if m.fin {
		return len(m.all) + 1
	}
	return len(m.all)
}

// FuzzOutgoing compares Outgoing with its model over any sequence of
// operations, those of dishonest peers included.
func FuzzOutgoing(f *testing.F) {
	f.Add([]byte{0, 10, 1, 0, 0, 200, 1, 3, 2, 5, 3, 7, 1, 0, 4, 0, 1, 0, 2, 255})
	f.Add([]byte{0, 30, 4, 0, 5, 0, 1, 0, 6, 0}) // an end that is given only after it was handed out
	f.Add([]byte{0, 255, 0, 255, 1, 1, 3, 9, 1, 4, 5, 0, 0, 8, 1, 1})
	f.Fuzz(func(t *testing.T, ops []byte) {
		r := rig{t: t}
		defer r.out.Release()
		for i := 0; i+1 < len(ops) && i < 400; i += 2 {
			r.step(ops[i]%7, int(ops[i+1]))
			r.compare()
		}
	})
}

type rig struct {
	t   testing.TB
	out Outgoing
	m   model
}

func (r *rig) step(op byte, arg int) {
	switch op {
	case 0:
		r.write(arg)
	case 1:
		r.send(1 + arg%5)
	case 2:
		r.ack(arg)
	case 3:
		r.rewind(arg)
	case 4:
		r.out.Finish()
		r.m.fin = true
	case 5:
		if arg < 8 {
			r.out.Void()
			r.m.void = true
			r.m.forget()
		}
	case 6:
		r.out.Given()
		r.m.endGiven = r.m.next > len(r.m.all)
		r.m.forget()
	}
}

// write appends a piece of any class: up to 100 bytes, some KiB, bulk.
func (r *rig) write(arg int) {
	if r.m.fin {
		return
	}
	n := arg % 100
	switch {
	case arg >= 240:
		n = 64000 - arg
	case arg >= 160:
		n = arg * 40
	}
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(uint32(len(r.m.all)+i) * 2654435761 >> 7)
	}
	r.m.all = append(r.m.all, p...)
	r.out.Append(tunnel.CopyChunk(p))
}

func (r *rig) send(n int) {
	batch := make([]tunnel.Chunk, n)
	got, fin := r.out.Next(batch)
	for _, c := range batch[:got] {
		b := c.Bytes()
		testutil.Requires(r.t, bytes.Equal(b, r.m.all[r.m.next:r.m.next+len(b)]), "other bytes at %d", r.m.next)
		r.m.next += len(b)
		if frame, ok := c.WithHeader(tunnel.Headroom); ok { // a link's header, put back as it promises
			was := [tunnel.Headroom]byte(frame)
			clear(frame[:tunnel.Headroom])
			copy(frame, was[:])
		}
		c.Release()
	}
	testutil.Requires(r.t, fin == (r.m.fin && r.m.next == len(r.m.all)), "end %v at %d of %d", fin, r.m.next, r.m.total())
	if fin {
		r.m.next = r.m.total()
	}
	r.m.forget()
}

// offset is one that may be anywhere in or right outside the sequence.
func (r *rig) offset(arg int) int { return max(0, (r.m.total()+3)*arg/250-1) }

func (r *rig) ack(arg int) {
	offset := r.offset(arg)
	if err := r.out.Ack(uint64(offset)); (err != nil) != (offset > r.m.next) {
		r.t.Fatalf("ack of %d with %d sent: %v", offset, r.m.next, err)
	} else if err == nil {
		r.m.acked = max(r.m.acked, offset)
	}
}

func (r *rig) rewind(arg int) {
	offset := r.offset(arg)
	err := r.out.Rewind(uint64(offset))
	testutil.Requires(r.t, (err != nil) == (offset < r.m.acked || offset > r.m.next),
		"rewound to %d of %d to %d: %v", offset, r.m.acked, r.m.next, err)
	if err == nil {
		r.m.acked, r.m.next, r.m.endGiven = offset, offset, false
	}
}

func (r *rig) compare() {
	kept := len(r.m.all) - min(r.m.acked, len(r.m.all))
	switch {
	case r.out.Kept() != kept:
		r.t.Fatalf("keeps %d bytes, want %d", r.out.Kept(), kept)
	case kept == 0 && r.out.Size() != 0:
		r.t.Fatalf("holds %d bytes of memory for nothing", r.out.Size())
	case r.out.Size() > copyBelow*kept+3*(64<<10):
		r.t.Fatalf("%d bytes pin %d", kept, r.out.Size())
	case r.out.Unsent() != (r.m.next < r.m.total()):
		r.t.Fatalf("unsent %v at %d of %d", r.out.Unsent(), r.m.next, r.m.total())
	case r.out.Done() != (r.m.fin && r.m.acked == r.m.total()):
		r.t.Fatalf("done %v with %d of %d acknowledged", r.out.Done(), r.m.acked, r.m.total())
	}
}
