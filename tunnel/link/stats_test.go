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
	a, b := sessions(t, near, far, link.Config{}, link.Config{Handler: accepted})
	c := testutil.Must(a.Dial(t.Context(), tunnel.NewFlow("tcp", "example.test:80")))(t)
	other := <-accepted
	testutil.Fails(t, testutil.Err(b.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1"))), "a side without a Handler")
	payload := make([]byte, 1<<20)
	go func() { _, _ = c.Write(payload); _ = c.CloseWrite() }()
	testutil.Equal(t, testutil.Must(io.Copy(io.Discard, other))(t), int64(len(payload)), "bytes")
	testutil.Equal(t, a.Stats().Ended, 0, "streams that have ended")
	_, _ = other.Write([]byte("answer"))
	_ = other.CloseWrite()
	testutil.Equal(t, string(testutil.Must(io.ReadAll(c))(t)), "answer", "what comes back")
	testutil.Eventually(t, "both sides have seen the end", func() bool { return a.Stats().Ended == 1 && b.Stats().Ended == 1 })
	sa, sb := a.Stats(), b.Stats()
	testutil.Equal(t, sa.DataSent, sb.DataReceived, "frames of data one way")
	testutil.Equal(t, sb.DataSent, sa.DataReceived, "frames of data the other way")
	testutil.AtLeast(t, sa.DataSent, uint64(len(payload)/tunnel.RecordSize), "frames for 1 MiB")
	testutil.AtLeast(t, sb.DataSent, 1, "frames for the answer")
	testutil.Equal(t, [2]uint64{sa.Opened, sb.Opened}, [2]uint64{1, 1}, "streams opened")
	testutil.Equal(t, sb.Accepted, 1, "streams accepted")
	testutil.Equal(t, [2]uint64{sa.Answered, sb.Answered}, [2]uint64{1, 2}, "dials answered")
}

// Losses print their labels, for tests that fail.
func TestLossesNameTheirCauses(t *testing.T) {
	testutil.Equal(t, link.Losses{tunnel.LossCut: 2, tunnel.LossLocal: 1}.String(), "[cut:2 local:1]", "some")
	testutil.Equal(t, link.Losses{}.String(), "[]", "none")
}
