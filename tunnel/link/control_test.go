package link_test

import (
	"encoding/binary"
	"net"
	"strings"
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

// What a server says of its agents comes with HELLO and changes by INFO; one of
// before says nothing.
func TestServingIsToldAndChanges(t *testing.T) {
	none := link.Serving{Told: true, Why: "no connection to any proxy agent"}
	near, far := tcpPair(t)
	client, server := sessions(t, near, far, link.Config{Hello: link.Hello{Role: link.RoleClient}},
		link.Config{Hello: link.Hello{Role: link.RoleServer, ServerCount: 3, Serving: none}})
	testutil.Equal(t, client.Serving(), none, "what HELLO told")
	testutil.Equal(t, client.ServerCount(), 3, "servers")
	testutil.Equal(t, server.Serving().Told, false, "a client tells of agents")
	server.SetServing(link.Serving{Told: true})
	testutil.Eventually(t, "the news", func() bool { return client.Serving() == link.Serving{Told: true} })
	server.SetServerCount(5) // an INFO that says nothing of agents changes nothing
	testutil.Eventually(t, "another count", func() bool { return client.ServerCount() == 5 })
	testutil.Equal(t, client.Serving(), link.Serving{Told: true}, "after news of something else")
	testutil.Equal(t, client.ServerCount(), 5, "servers")
	server.SetServing(link.Serving{Told: true, Why: strings.Repeat("x", 1<<20)})
	testutil.Eventually(t, "a long reason, cut", func() bool { n := len(client.Serving().Why); return n > 0 && n <= 1<<11 })
	testutil.Succeeds(t, client.Err(), "the link")
	testutil.Equal(t, client.ServerCount(), 5, "servers")
}
