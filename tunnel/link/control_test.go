package link_test

import (
	"encoding/binary"
	"net"
	"testing"

	"konnectivity/tunnel/link"
)

// TestPeerThatPausesMissesNoNews: what changes while it reads nothing, it hears once it reads
// on: the newest of each kind, and that this side leaves.
func TestPeerThatPausesMissesNoNews(t *testing.T) {
	noLeaks(t)
	near, far := net.Pipe() // takes nothing unless it is read
	r := newRig(t, near, far, false, link.Config{})
	for i := range 2000 {
		r.ses.SetServerCount(i + 1)
	}
	r.ses.Drain()
	r.send(frame{tPing, 0, 0, u64(99)})
	count, drained := uint32(0), false
	for f := r.next(); f.typ != tPing; f = r.next() {
		switch f.typ {
		case tInfo:
			value, _ := fieldOf(f.payload, 6)
			count = binary.BigEndian.Uint32(value)
		case tGoAway:
			drained = true
		}
	}
	if !drained {
		t.Error("the peer does not hear that this side leaves")
	}
	if count != 2000 {
		t.Errorf("the peer takes the server count for %d, not 2000", count)
	}
	r.end()
}
