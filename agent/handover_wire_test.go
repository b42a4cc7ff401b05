//go:build linux

package agent

import (
	"bytes"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/resume"
)

// What another process sends is a message or an error. A message is what its sender meant.
func FuzzHandoverMessage(f *testing.F) {
	conn := resume.Snapshot{
		Token: [16]byte{1}, ID: "id", Address: "node:10250", Window: time.Minute, Epoch: 3,
		Taken: 10, From: 5, Acked: 5, Sent: 9, Kept: []tunnel.Chunk{tunnel.CopyChunk([]byte("hel")), tunnel.CopyChunk([]byte("lo"))}, Owed: []byte("you"),
	}
	for _, m := range []message{
		{Kind: msgHello, Version: handoverVersion, ID: "agent", Servers: []string{"server:8091"}},
		{Kind: msgRefused, Reason: "no"},
		{Kind: msgOffer, Conn: &conn},
		{Kind: msgOffer, Conn: &resume.Snapshot{Left: true, Ended: true, TakenEnd: true}},
	} {
		f.Add(sent(f, m))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < headSize {
			return
		}
		m, err := decode(b[:headSize], bytes.NewReader(b[headSize:]))
		if err != nil {
			return
		}
		again := sent(t, m)
		back := testutil.Must(decode(again[:headSize], bytes.NewReader(again[headSize:])))(t)
		more := sent(t, back)
		testutil.Holds(t, bytes.Equal(more, again), "%q came back as %q", again, more)
	})
}

// sent returns m as the other process reads it.
func sent(t testing.TB, m message) []byte {
	return bytes.Join(testutil.Must(encode(m))(t), nil)
}

// Bounds are what the page says.
func TestHandoverFiguresAreDocumented(t *testing.T) {
	testutil.Says(t, "../docs/security.md", "a message has at most %v KiB of JSON and %v MiB of bytes, a batch %v connections, and no other is added once they keep %v MiB", maxHandoverText>>10, maxHandoverBytes>>20, handoverBatch, handoverBytes>>20)
}
