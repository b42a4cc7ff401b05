package link_test

import (
	"io"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// What one side counts as sent, the other counts as received, and a stream that
// was refused was answered, but never established, so it does not end.
func TestStatsCountBothWays(t *testing.T) {
	near, far := tlsPair(t)
	accepted := make(hand, 1)
	a, b := sessions(t, near, far, link.Config{}, link.Config{Forwarder: accepted})
	c := testutil.Must(a.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t)
	other := <-accepted
	if _, err := b.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")); err == nil {
		t.Fatal("a side without a Forwarder served a stream")
	}
	payload := make([]byte, 1<<20)
	go func() { _, _ = c.Write(payload); _ = c.CloseWrite() }()
	if n, err := io.Copy(io.Discard, other); err != nil || int(n) != len(payload) {
		t.Fatal(n, err)
	}
	if s := a.Stats(); s.Ended != 0 {
		t.Errorf("%d streams have ended, one is open", s.Ended)
	}
	_, _ = other.Write([]byte("answer"))
	_ = other.CloseWrite()
	if text, err := io.ReadAll(c); string(text) != "answer" || err != nil {
		t.Fatal(string(text), err)
	}
	testutil.Eventually(t, "both sides have seen the end", func() bool { return a.Stats().Ended == 1 && b.Stats().Ended == 1 })
	sa, sb := a.Stats(), b.Stats()
	if sa.DataSent != sb.DataReceived || sb.DataSent != sa.DataReceived {
		t.Errorf("sent %d and %d frames of data, received %d and %d", sa.DataSent, sb.DataSent, sb.DataReceived, sa.DataReceived)
	}
	if least := uint64(len(payload) / tunnel.RecordSize); sa.DataSent < least || sb.DataSent == 0 {
		t.Errorf("%d frames for 1 MiB, at least %d are needed; %d for the answer", sa.DataSent, least, sb.DataSent)
	}
	if sa.Opened != 1 || sb.Opened != 1 || sb.Accepted != 1 || sa.Answered != 1 || sb.Answered != 2 {
		t.Errorf("opened %d, accepted %d, answered %d and %d", sa.Opened, sb.Accepted, sa.Answered, sb.Answered)
	}
}
