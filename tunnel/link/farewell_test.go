package link_test

import (
	"errors"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// A peer that writes all the time and reads late learns how its streams ended before the link
// was closed, and does not take them for lost with the link.
func TestAPeerReadsWhatCameBeforeTheEnd(t *testing.T) {
	for range 10 {
		if peerReadsWhatCameBeforeTheEnd(t) {
			return
		}
	}
	t.Skip("this machine is slower than a peer may be")
}

// peerReadsWhatCameBeforeTheEnd returns false if the peer took longer than the link waits for it.
func peerReadsWhatCameBeforeTheEnd(t *testing.T) (judged bool) {
	near, far := tcpPair(t)
	slow := &late{Conn: near}
	ends := make(hand, 1)
	a, b := sessions(t, slow, far, link.Config{}, link.Config{Handler: ends})
	conn := testutil.Must(a.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")))(t)
	end := <-ends
	slow.held.Lock()
	closed := make(chan struct{})
	began := time.Now()
	testutil.NoError(t, end.Reset(&tunnel.ResetError{Code: tunnel.CodeGone}))
	go func() { defer close(closed); _ = b.Close() }()
	for range 50 { // one fails if the link is closed
		if _, err := conn.Write([]byte("x")); err != nil {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	slow.held.Unlock()
	_ = conn.SetReadDeadline(time.Now().Add(patience))
	var reset *tunnel.ResetError
	_, err := conn.Read(make([]byte, 1))
	told := errors.As(err, &reset) && reset.Code == tunnel.CodeGone
	judged = told || time.Since(began) < time.Second // that long the link stays, at the least
	if judged && !told {
		t.Errorf("the stream ended with %v, want a reset because its end is gone", err)
	}
	promptly(t, "Close", func() { <-closed })
	return judged
}
