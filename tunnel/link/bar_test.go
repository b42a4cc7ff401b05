package link_test

import (
	"errors"
	"net"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// late is a net.Conn whose reader gets nothing while held.
type late struct {
	net.Conn
	held sync.Mutex
}

func (l *late) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	l.held.Lock()
	defer l.held.Unlock()
	return n, err
}

// A peer that writes all the time and reads late learns why its streams were reset: the link
// is not closed under what it has yet to read.
func TestABarredPeerLearnsWhy(t *testing.T) {
	near, far := tcpPair(t)
	slow := &late{Conn: near}
	ends := make(grab, 1)
	a, b := sessions(t, slow, far, link.Config{}, link.Config{Forwarder: ends})
	conn := testutil.Must(a.Dial(t.Context(), tunnel.NewFlow("tcp", "x:1")))(t)
	<-ends
	slow.held.Lock()
	closed := make(chan struct{})
	b.Bar(tunnel.CodePolicy)
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
	if _, err := conn.Read(make([]byte, 1)); !errors.As(err, &reset) || reset.Code != tunnel.CodePolicy {
		t.Errorf("the stream ended with %v, want a reset by policy", err)
	}
	promptly(t, "Close", func() { <-closed })
}

// One that never reads does not keep it open.
func TestABarredPeerIsNotWaitedForForever(t *testing.T) {
	t.Parallel()
	near, far := tcpPair(t)
	slow := &late{Conn: near}
	_, b := sessions(t, slow, far, link.Config{}, link.Config{})
	slow.held.Lock()
	defer slow.held.Unlock()
	b.Bar(tunnel.CodePolicy)
	promptly(t, "Close", func() { _ = b.Close() })
}
