//go:build linux

package agent

import (
	"bytes"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/resume"
)

// What another process sends is a message or an error. A message is what its sender meant.
func FuzzHandoverMessage(f *testing.F) {
	conn := resume.Snapshot{
		Token: [16]byte{1}, ID: "id", Address: "node:10250", Window: time.Minute, Epoch: 3,
		Taken: 10, From: 5, Acked: 5, Sent: 9, Kept: []byte("hello"), Owed: []byte("you"),
	}
	for _, m := range []message{
		{Kind: msgHello, Version: handoverVersion, ID: "agent", Servers: []string{"server:8091"}},
		{Kind: msgRefused, Reason: "no"},
		{Kind: msgOffer, Conn: &conn},
		{Kind: msgOffer, Conn: &resume.Snapshot{Left: true, Ended: true, TakenEnd: true}},
	} {
		f.Add(testutil.Must(encode(m))(f))
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		if len(sent) < headSize {
			return
		}
		m, err := decode(sent[:headSize], bytes.NewReader(sent[headSize:]))
		if err != nil {
			return
		}
		again := testutil.Must(encode(m))(t)
		back := testutil.Must(decode(again[:headSize], bytes.NewReader(again[headSize:])))(t)
		if more := testutil.Must(encode(back))(t); !bytes.Equal(more, again) {
			t.Errorf("%q came back as %q", again, more)
		}
	})
}
