package tunnel

import (
	"errors"
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

// socket is a kernel socket as a Conn, and both sides of itself. It reads in
// chunks that are taken from the pool only once the kernel has data, so a
// connection that is idle holds no buffer.
type socket struct {
	conn kernelConn
	raw  syscall.RawConn

	// Published by writers for end.
	writing  atomic.Int32                  // writes that are under way
	wasReset atomic.Bool                   // one of them heard that the peer has reset
	verdict  atomic.Pointer[chan struct{}] // receives when the last write under way ends; nil: end does not wait

	seized  atomic.Pointer[Seized] // nil: it is its Conn's own
	finSent atomic.Bool            // the direction away has ended

	// The reader's own state: RawConn.Read wants a closure, and one a
	// connection is cheaper than one a read.
	readFn func(fd uintptr) bool
	chunk  Chunk
	err    error
	reader Receiver  // that is told after a rest; nil: it waits for as long as it takes
	restAt time.Time // when the next wait ends at the latest
}

func newSocket(c kernelConn) Conn {
	raw, err := RawConn(c)
	if err != nil { // closed already, or on Windows
		return newForeign(c)
	}
	s := &socket{conn: c, raw: raw}
	s.readFn = s.readOnce
	return s
}

func (s *socket) In() Source { return s }
func (s *socket) Out() Sink  { return s }

func (s *socket) RemoteAddr() net.Addr               { return s.conn.RemoteAddr() }
func (s *socket) SetDeadline(t time.Time) error      { return s.conn.SetDeadline(t) }
func (s *socket) SetReadDeadline(t time.Time) error  { return s.conn.SetReadDeadline(t) }
func (s *socket) SetWriteDeadline(t time.Time) error { return s.conn.SetWriteDeadline(t) }

// LocalAddr implements net.Conn. It is never nil, as Go's is where getsockname(2) fails: on
// macOS, for a connection that its peer has reset already.
func (s *socket) LocalAddr() net.Addr {
	if a := s.conn.LocalAddr(); a != nil {
		return a
	}
	return &net.TCPAddr{}
}

// Close implements net.Conn. A socket that was seized stays open.
func (s *socket) Close() error {
	if s.seized.Load() != nil {
		return nil
	}
	return s.conn.Close()
}

// CloseFor implements Conn.
func (s *socket) CloseFor(error) error { return s.Close() }

// CloseWrite implements Conn.
func (s *socket) CloseWrite() error {
	if s.seized.Load() != nil || s.finSent.Load() {
		return nil // the next Conn of a seized socket hears of the end again
	}
	err := s.conn.CloseWrite()
	s.finSent.Store(err == nil)
	return err
}

// Reset implements Conn.
func (s *socket) Reset(cause error) error {
	if s.seized.Load() == nil {
		abort(s.conn, cause)
	}
	return nil
}

// SyscallConn implements syscall.Conn.
func (s *socket) SyscallConn() (syscall.RawConn, error) { return s.raw, nil }

// Read implements net.Conn.
func (s *socket) Read(p []byte) (int, error) {
	n, err := s.conn.Read(p)
	if err == io.EOF {
		err = s.end()
	}
	return n, s.seizedError(err)
}

// ReadChunks implements Source; it fills at most one chunk.
func (s *socket) ReadChunks(dst []Chunk) (int, error) {
	if err := s.raw.Read(s.readFn); err != nil {
		if s.reader != nil && errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, s.rest()
		}
		return 0, s.seizedError(err)
	}
	chunk, err := s.chunk, s.err
	s.chunk, s.err = Chunk{}, nil
	switch err {
	case nil:
		dst[0] = chunk
		return 1, nil
	case io.EOF:
		err = s.end()
	}
	return 0, err
}

// Deliver implements Source: a socket has no read loop.
func (s *socket) Deliver(Receiver) bool { return false }

// readOnce is one attempt to read; false asks the poller to wait.
func (s *socket) readOnce(fd uintptr) bool {
	chunk := NewChunk(ChunkSize)
	n, err := RawRead(fd, chunk.Bytes())
	if err != nil {
		chunk.Release()
	}
	switch {
	case err == syscall.EAGAIN:
		if s.wait() {
			return false
		}
		s.err = ErrSeized
	case err == io.EOF:
		s.err = err
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

// Failed implements Conn.
func (s *socket) Failed() error {
	if s.wasReset.Load() {
		return s.readError(syscall.ECONNRESET)
	}
	return socketFailure(s.raw)
}

// verdictTime bounds how long the end waits for a write that is about to fail: on
// a machine that is starved, what takes a turn of the scheduler takes a while.
// Tests lengthen it.
var verdictTime = 2 * time.Second

// end tells an end that is a reset from one in order. The kernel reports a
// reset once: if to a write, reads only see the end. So where
// nothing can be sent any more, the end waits for the writes under way: they are
// about to fail, one of them perhaps with the reset. For a reset behind
// a FIN that makes no difference: writes then return EPIPE (Linux,
// tcp_reset).
func (s *socket) end() error {
	if pollSocket(s.raw)&pollHup != 0 && s.writing.Load() > 0 {
		s.awaitWrites(verdictTime)
	}
	if s.wasReset.Load() {
		return s.readError(syscall.ECONNRESET)
	}
	return io.EOF
}

// awaitWrites waits, no longer than bound, until the writes under way have ended.
func (s *socket) awaitWrites(bound time.Duration) {
	told := make(chan struct{}, 1)
	s.verdict.Store(&told)
	if s.writing.Load() == 0 { // else the last of them sees verdict
		return
	}
	timer := time.NewTimer(bound)
	defer timer.Stop()
	select {
	case <-told:
	case <-timer.C:
	}
}

// wrote publishes how a write ended.
func (s *socket) wrote(err error) {
	if err != nil && IsErrno(err, syscall.ECONNRESET) {
		s.wasReset.Store(true)
	}
	if s.writing.Add(-1) > 0 {
		return
	}
	if told := s.verdict.Load(); told != nil {
		select {
		case *told <- struct{}{}:
		default:
		}
	}
}

// Write implements net.Conn.
func (s *socket) Write(p []byte) (int, error) {
	s.writing.Add(1)
	n, err := s.conn.Write(p)
	s.wrote(err)
	if err != nil && s.keep(err, p[n:]) {
		return len(p), nil
	}
	return n, err
}

// tryMax is the most that TryWrite takes. Small messages gain from being
// written where they arrive; bulk gains from being written by many chunks at
// once, which only the reader's own goroutine can do.
const tryMax = 4 << 10

// Nonblocking implements Sink.
func (s *socket) Nonblocking() bool { return true }

// TryWrite implements Sink.
func (s *socket) TryWrite(c Chunk) int {
	if c.Len() > tryMax {
		return 0
	}
	n := 0
	s.writing.Add(1)
	var failed error // the write of the rest fails with it again
	_ = s.raw.Write(func(fd uintptr) bool {
		n, failed = RawWrite(fd, c.Bytes())
		return true
	})
	s.wrote(failed)
	return n
}

// Flush implements Sink; a socket gathers nothing.
func (s *socket) Flush() {}

// WriteChunks implements Sink with one writev where the kernel allows.
func (s *socket) WriteChunks(src []Chunk) error {
	defer ReleaseAll(src)
	s.writing.Add(1)
	n, err := s.writeAll(src)
	s.wrote(err)
	if err != nil && s.keepChunks(err, src, n) {
		return nil
	}
	return err
}

// isReset reports whether err is the kernel's error for a reset by the peer. ENOTCONN is what
// it says of the end of a direction behind that.
func isReset(err error) bool {
	return IsErrno(err, syscall.ECONNRESET, syscall.EPIPE, syscall.ENOTCONN)
}

// socketFailure returns the failure of a socket that the kernel knows of, without a read.
func socketFailure(raw syscall.RawConn) error {
	if pollSocket(raw)&pollErr != 0 {
		return syscall.ECONNRESET
	}
	return nil
}

// pollSocket is poll; 0 once the socket is closed.
func pollSocket(raw syscall.RawConn) (events int16) {
	_ = raw.Control(func(fd uintptr) { events, _ = poll(fd, 0) })
	return events
}
