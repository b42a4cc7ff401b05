package tunnel

import (
	"io"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
)

// kernelConn is what *net.TCPConn and *net.UnixConn have in common.
type kernelConn interface {
	net.Conn
	syscall.Conn
	CloseWrite() error
}

// socket is a kernel socket as a Conn. It reads in chunks that are taken from
// the pool only once the kernel has data, so a connection that is idle holds
// no buffer.
type socket struct {
	kernelConn
	raw syscall.RawConn

	writing  atomic.Int32 // writes that are under way
	wasReset atomic.Bool  // a write heard that the peer has reset; see endOf

	// The reader's own state: RawConn.Read wants a closure, and one a
	// connection is cheaper than one a read.
	readFn func(fd uintptr) bool
	chunk  Chunk
	err    error
}

func newSocket(c kernelConn) Conn {
	raw, err := RawConn(c)
	if err != nil { // closed already, or on Windows
		return plainConn{c}
	}
	s := &socket{kernelConn: c, raw: raw}
	s.readFn = s.readOnce
	return s
}

func (s *socket) Reset(error) error {
	abort(s.kernelConn)
	return nil
}

// SetNoDelay is here so that whoever holds a wrapped socket can still tune it.
func (s *socket) SetNoDelay(on bool) error {
	if t, ok := s.kernelConn.(*net.TCPConn); ok {
		return t.SetNoDelay(on)
	}
	return nil
}

// SetLinger is here so that whoever holds a wrapped socket can reset it.
func (s *socket) SetLinger(sec int) error {
	if l, ok := s.kernelConn.(interface{ SetLinger(int) error }); ok {
		return l.SetLinger(sec)
	}
	return nil
}

// SyscallConn implements syscall.Conn.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return s.raw, nil }

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) {
	n, err := s.kernelConn.Read(p)
	if err == io.EOF {
		err = s.end()
	}
	return n, err
}

// end is what a read returned as the end.
func (s *socket) end() error {
	err := io.EOF
	_ = s.raw.Control(func(fd uintptr) { err = s.endOf(fd) })
	return err
}

// ReadChunks implements ChunkReader; it fills at most one chunk.
func (s *socket) ReadChunks(dst []Chunk) (int, error) {
	if err := s.raw.Read(s.readFn); err != nil {
		return 0, err
	}
	chunk, err := s.chunk, s.err
	s.chunk, s.err = Chunk{}, nil
	if err != nil {
		return 0, err
	}
	dst[0] = chunk
	return 1, nil
}

// readOnce is one attempt to read; false asks the poller to wait.
func (s *socket) readOnce(fd uintptr) bool {
	chunk := NewChunk(ChunkSize)
	n, err := RawRead(fd, chunk.Bytes())
	if err != nil {
		chunk.Release()
	}
	switch {
	case err == syscall.EAGAIN:
		return false
	case err == io.EOF:
		s.err = s.endOf(fd)
	case err != nil:
		s.err = s.readError(err)
	default:
		s.chunk = chunk.Slice(0, n)
	}
	return true
}

func (s *socket) readError(err error) error {
	return &net.OpError{Op: "read", Net: s.LocalAddr().Network(), Source: s.LocalAddr(), Addr: s.RemoteAddr(), Err: os.NewSyscallError("read", err)}
}

// verdictTime bounds how long the end waits for a write that is about to fail.
const verdictTime = 100 * time.Millisecond

// endOf tells an end that is a reset from one in order. The kernel reports a
// reset once: where a write got to hear of it, reads only see the end. A reset
// that comes after a FIN changes nothing about that: writes are then told EPIPE
// (Linux, tcp_reset).
func (s *socket) endOf(fd uintptr) error {
	if poll(fd)&pollHup != 0 { // whoever writes now fails, and may be the one
		for until := time.Now().Add(verdictTime); s.writing.Load() > 0 && time.Now().Before(until); {
			time.Sleep(10 * time.Microsecond)
		}
	}
	if s.wasReset.Load() {
		return s.readError(syscall.ECONNRESET)
	}
	return io.EOF
}

// Write implements net.Conn.
func (s *socket) Write(p []byte) (int, error) {
	s.writing.Add(1)
	n, err := s.kernelConn.Write(p)
	s.wrote(err)
	return n, err
}

// wrote notes how a write ended.
func (s *socket) wrote(err error) {
	if err != nil && IsErrno(err, syscall.ECONNRESET) {
		s.wasReset.Store(true)
	}
	s.writing.Add(-1)
}

// tryMax is the most that TryWrite takes. Small messages gain from being
// written where they arrive; bulk gains from being written by many chunks at
// once, which only the reader's own goroutine can do.
const tryMax = 4 << 10

// TryWrite implements Sink.
func (s *socket) TryWrite(c Chunk) int {
	if c.Len() > tryMax {
		return 0
	}
	n := 0
	s.writing.Add(1)
	var failed error // comes again, to who then writes what was not taken
	_ = s.raw.Write(func(fd uintptr) bool {
		n, failed = RawWrite(fd, c.Bytes())
		return true
	})
	s.wrote(failed)
	return n
}

// Flush implements Sink; a socket gathers nothing.
func (s *socket) Flush() {}

// WriteChunks implements ChunkWriter with one writev where the kernel allows.
func (s *socket) WriteChunks(src []Chunk) error {
	defer ReleaseAll(src)
	if len(src) == 1 {
		_, err := s.Write(src[0].Bytes())
		return err
	}
	vec := make(net.Buffers, len(src))
	for i, c := range src {
		vec[i] = c.Bytes()
	}
	s.writing.Add(1)
	_, err := vec.WriteTo(s.kernelConn)
	s.wrote(err)
	return err
}

// isReset says that err is the kernel's word for "the peer reset it".
func isReset(err error) bool {
	return IsErrno(err, syscall.ECONNRESET, syscall.EPIPE)
}
