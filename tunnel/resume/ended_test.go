package resume_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A carrier that comes after the end of a direction was taken is closed as soon
// as the connection is over: a server that is to leave waits for it.
func TestLaterCarriersAreClosed(t *testing.T) {
	w := newWorld(t, 1, 30*time.Second)
	l := testutil.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	w.dest = l.Addr().String()
	c := testutil.Must(w.opener.Dialer(w).Dial(context.Background(), tunnel.NewFlow("tcp", "dest:1")))(t)
	far := testutil.Must(l.Accept())(t)
	defer far.Close()
	testutil.NoError(t, c.CloseWrite())
	if _, err := far.Read(make([]byte, 1)); err != io.EOF {
		t.Fatal("at the destination: ", err)
	}
	time.Sleep(200 * time.Millisecond) // it is acknowledged, too
	s := w.servers[0]
	s.cut(true)
	s.linkNear()
	eventually(t, func() bool { return w.opener.Stats().Resumes == 1 })
	_ = far.Close()
	if _, err := c.Read(make([]byte, 1)); err != io.EOF {
		t.Error("at the opener: ", err)
	}
	_ = c.Close()
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		s.mu.Lock()
		streams := s.near.Streams() + s.far.Streams()
		s.mu.Unlock()
		if streams == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d streams are left", streams)
		}
	}
}
