//go:build linux

package tunnel

import (
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// resetSocket is a socket that the peer has reset, and what the first write
// after that was told. The kernel tells nobody else.
func resetSocket(t *testing.T) (*socket, error) {
	t.Helper()
	near, far := testutil.Pair(t)
	_ = far.SetLinger(0)
	_ = far.Close()
	s := newSocket(near).(*socket)
	for end := time.Now().Add(10 * time.Second); pollSocket(s.raw)&pollHup == 0; time.Sleep(time.Millisecond) {
		testutil.Requires(t, !time.Now().After(end), "the reset did not arrive")
	}
	_, told := near.Write([]byte("x"))
	testutil.Requires(t, IsErrno(told, syscall.ECONNRESET), "the write was told %v", told)
	return s, told
}

// nameless is a connection for which getsockname(2) failed.
type nameless struct{ *net.TCPConn }

func (nameless) LocalAddr() net.Addr { return nil }

// A socket whose address the kernel does not tell fails by errors, as others do.
func TestSocketWithoutAddress(t *testing.T) {
	near, far := testutil.Pair(t)
	_ = far.SetLinger(0)
	_ = far.Close()
	s := newSocket(nameless{near})
	testutil.ErrorIs(t, testutil.Err(s.Read(make([]byte, 1))), syscall.ECONNRESET, "the read")
	testutil.Equal(t, s.LocalAddr().String(), ":0", "its address")
}

// A read that finds the end while a write is under way does not call it an end
// in order before that write has had its say.
func TestEndWaitsForWritesUnderWay(t *testing.T) {
	defer func(bound time.Duration) { verdictTime = bound }(verdictTime)
	verdictTime = time.Hour // a busy machine may take more than the usual bound between two steps
	testutil.Each(t, map[string]func(*socket) error{
		"Read":       func(s *socket) error { _, err := s.Read(make([]byte, 1)); return err },
		"ReadChunks": func(s *socket) error { _, err := s.ReadChunks(make([]Chunk, 1)); return err },
	}, func(t *testing.T, read func(*socket) error) {
		s, told := resetSocket(t)
		s.writing.Add(1)
		got := testutil.Later(func() error { return read(s) })
		for s.verdict.Load() == nil && len(got) == 0 {
			time.Sleep(time.Millisecond)
		}
		s.wrote(told)
		testutil.ErrorIs(t, <-got, syscall.ECONNRESET, "the read")
		testutil.ErrorIs(t, s.Failed(), syscall.ECONNRESET, "how the socket has failed")
	})
}

// The last write under way ends the wait, not its bound; a write that ended
// before it is no reason to wait.
func TestLastWriteEndsTheWait(t *testing.T) {
	s, _ := resetSocket(t)
	s.writing.Add(2)
	waited := make(chan struct{})
	go func() { s.awaitWrites(time.Hour); close(waited) }()
	for s.verdict.Load() == nil {
		time.Sleep(time.Millisecond)
	}
	s.wrote(nil)
	select {
	case <-waited:
		t.Error("the wait ended before the last write")
	case <-time.After(10 * time.Millisecond):
	}
	s.wrote(nil)
	select {
	case <-waited:
	case <-time.After(time.Minute):
		t.Fatal("nobody ended the wait")
	}
	s.awaitWrites(time.Hour) // or the test times out
	testutil.Equal(t, testutil.Err(s.Read(make([]byte, 1))), io.EOF, "the read")
}

// A direction that ends behind the peer's reset was reset by the peer, too: a client of HTTP
// may write to a connection that its server has closed, and then close it.
func TestEndBehindAReset(t *testing.T) {
	s, _ := resetSocket(t)
	testutil.Equal(t, CodeOf(s.CloseWrite()), CodePeerReset, "the end's code")
}
