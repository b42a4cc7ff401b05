//go:build linux

package tunnel

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// often is enough for a call to be made both with and without the scheduler's knowledge,
// but for one time in 10^13.
const often = 2000

// Whether or not the scheduler is told, a call returns what package syscall's would.
func TestCallsReturnKernelResults(t *testing.T) {
	near, far := rawPair(t)
	always := func(what string, want error, call func(uintptr, []byte) (int, error), fd uintptr, p []byte) {
		t.Helper()
		for range often {
			n, err := call(fd, p)
			testutil.Requires(t, n == 0 && err == want, "%s: %d, %v", what, n, err)
		}
	}
	one, full := make([]byte, 1), make([]byte, 1<<20)
	always("a read of nothing", syscall.EAGAIN, RawRead, near, one)
	always("an empty read", nil, RawRead, near, nil)
	for i := range often {
		n, err := RawWrite(far, []byte{byte(i)})
		testutil.Requires(t, n == 1 && err == nil, "a write: %d, %v", n, err)
		n, err = RawRead(near, one)
		testutil.Requires(t, n == 1 && err == nil && one[0] == byte(i), "a read of %d: %d, %v, %d", byte(i), n, err, one[0])
	}
	for err := error(nil); err == nil; {
		_, err = RawWrite(far, full)
	}
	always("a write to a full socket", syscall.EAGAIN, RawWrite, far, full)
	_ = syscall.Shutdown(int(near), syscall.SHUT_RDWR)
	always("a write after the end", syscall.EPIPE, RawWrite, near, one)
	for err := error(nil); err == nil; {
		_, err = RawRead(near, full)
		testutil.Requires(t, err == nil || err == io.EOF, "a read of what is left: %v", err)
	}
	always("a read at the end", io.EOF, RawRead, near, one)
}

// rawPair is two non-blocking sockets that are connected.
func rawPair(t *testing.T) (near, far uintptr) {
	t.Helper()
	fds := testutil.Must(syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0))(t)
	t.Cleanup(func() { _, _ = syscall.Close(fds[0]), syscall.Close(fds[1]) })
	return uintptr(fds[0]), uintptr(fds[1])
}

// Chunks of all sizes, empty ones and more than go at once among them, arrive whole and
// in order at a reader that is slow to make room.
func TestWriteChunksWritesAll(t *testing.T) {
	near, far := testutil.Pair(t)
	_ = near.SetWriteBuffer(256 << 10)
	s := newSocket(near)
	rnd := rand.New(rand.NewPCG(1, 2))
	var want bytes.Buffer
	var batches [][]Chunk
	for range 200 {
		batch := make([]Chunk, 1+rnd.IntN(2*batchSize+1))
		for i := range batch {
			p := make([]byte, []int{0, 1, rnd.IntN(100), rnd.IntN(RecordSize), ChunkSize}[rnd.IntN(5)])
			for j := range p {
				p[j] = byte(rnd.Uint32())
			}
			want.Write(p)
			batch[i] = CopyChunk(p)
		}
		batches = append(batches, batch)
	}
	written := make(chan error, 1)
	go func() {
		for _, batch := range batches {
			if err := s.Out().WriteChunks(batch); err != nil {
				written <- err
				return
			}
		}
		written <- near.CloseWrite()
	}()
	got := testutil.Must(io.ReadAll(far))(t)
	testutil.Equal(t, bytes.Equal(got, want.Bytes()), true, "%d bytes of %d came, all in order", len(got), want.Len())
	testutil.Succeeds(t, <-written, "the writes")
}

// A write that waits for room ends with its deadline, and with its socket; one after a
// reset says so.
func TestWriteChunksFails(t *testing.T) {
	stuck := func(t *testing.T) (Conn, *net.TCPConn, chan error) {
		near, far := testutil.Pair(t)
		s, failed := newSocket(near), make(chan error, 1)
		go func() {
			for {
				if err := s.Out().WriteChunks([]Chunk{NewChunk(ChunkSize), NewChunk(1)}); err != nil {
					failed <- err
					return
				}
			}
		}()
		return s, far, failed
	}
	for name, c := range map[string]struct {
		end  func(s Conn, far *net.TCPConn)
		want error
	}{
		"deadline": {func(s Conn, _ *net.TCPConn) { _ = s.SetWriteDeadline(time.Now()) }, os.ErrDeadlineExceeded},
		"close":    {func(s Conn, _ *net.TCPConn) { _ = s.Close() }, net.ErrClosed},
		"reset":    {func(_ Conn, far *net.TCPConn) { _ = far.SetLinger(0); _ = far.Close() }, syscall.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			s, far, failed := stuck(t)
			c.end(s, far)
			testutil.ErrorIs(t, <-failed, c.want, "the write")
		})
	}
}
