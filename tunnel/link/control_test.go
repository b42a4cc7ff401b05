package link_test

import (
	"encoding/binary"
	"net"
	"testing"

	"konnectivity/internal/testutil"
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
	testutil.Equal(t, drained, true, "the peer hears that this side leaves")
	testutil.Equal(t, count, 2000, "the server count that the peer was told")
	r.end()
}
