package link

import (
	"testing"

	"konnectivity/tunnel"
)

// A link without streams waits with a small buffer, and whatever comes has room.
func TestAQuietLinkHoldsLittle(t *testing.T) {
	r := &frameReader{buf: newReadBuffer(true)}
	defer func() { r.buf.Release() }()
	for _, step := range []struct {
		what           string
		came, unparsed int
		quiet          bool
		want           int
	}{
		{"a ping", 20, 0, true, tunnel.QuietSize},
		{"half a frame", 20, 7, true, tunnel.RecordSize},
		{"the rest of it", 30, 0, true, tunnel.QuietSize},
		{"a stream's first", 40, 0, false, tunnel.RecordSize},
		{"its last", 40, 0, true, tunnel.QuietSize},
		{"as much as there is room for", tunnel.QuietSize, 0, true, tunnel.RecordSize},
		{"much at once", 4 * tunnel.QuietSize, 0, true, tunnel.RecordSize},
	} {
		for i := range r.buf.Bytes()[:step.came] {
			r.buf.Bytes()[i] = byte(i)
		}
		r.have, r.pos, r.quiet = step.came, step.came-step.unparsed, step.quiet
		first := byte(r.pos)
		r.makeRoom()
		if r.buf.Len() != step.want || r.have != step.unparsed || r.pos != 0 {
			t.Errorf("after %s: room for %d, of which %d to %d are used; want room for %d", step.what, r.buf.Len(), r.pos, r.have, step.want)
		}
		if r.have > 0 && r.buf.Bytes()[0] != first {
			t.Errorf("after %s: what was unparsed is lost", step.what)
		}
		if r.have > 0 {
			r.have = 0
		}
	}
}
