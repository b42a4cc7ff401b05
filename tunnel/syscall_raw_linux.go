//go:build linux && !race && !msan && !asan

package tunnel

import (
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
	"unsafe"
)

// Package syscall reports every call to Go's scheduler, since a call may block. The first
// one after the process has run out of work wakes the scheduler's monitor thread, which
// then looks every 20 µs whether a call takes long. Calls on a non-blocking socket hardly
// ever do, except where memory is short, and a process that carries bytes runs out of work
// thousands of times a second. So only one of plainOf calls, at random, is a plain one,
// which is reported; the others are raw.
//
// Some are plain because a process that is busy for long needs the monitor: it
// preempts goroutines that run for 10 ms, and polls sockets while no thread is idle.
const plainOf = 32

func read(fd int, p []byte) (int, error) {
	return rawCall(syscall.SYS_READ, fd, unsafe.Pointer(unsafe.SliceData(p)), len(p))
}

func write(fd int, p []byte) (int, error) {
	return rawCall(syscall.SYS_WRITE, fd, unsafe.Pointer(unsafe.SliceData(p)), len(p))
}

// rawCall is a system call on a non-blocking descriptor, which is reported to the
// scheduler once in plainOf times.
func rawCall(call uintptr, fd int, p unsafe.Pointer, n int) (int, error) {
	var done uintptr
	var errno syscall.Errno
	if rand.Uint32()%plainOf == 0 {
		done, _, errno = syscall.Syscall(call, uintptr(fd), uintptr(p), uintptr(n))
	} else {
		done, _, errno = syscall.RawSyscall(call, uintptr(fd), uintptr(p), uintptr(n))
	}
	if errno != 0 {
		return -1, errno
	}
	return int(done), nil
}

// writeAll writes all of src, which most often takes one writev(2). It returns how many
// bytes were written.
func (s *socket) writeAll(src []Chunk) (int, error) {
	g := gathers.Get().(*gather)
	defer gathers.Put(g)
	g.written = 0
	for part := range slices.Chunk(src, batchSize) {
		g.fill(part)
		err := s.raw.Write(g.fn)
		clear(g.vec[:])
		if err != nil {
			return g.written, err
		}
		if g.err != nil {
			return g.written, &net.OpError{Op: "writev", Net: s.LocalAddr().Network(), Source: s.LocalAddr(), Addr: s.RemoteAddr(),
				Err: os.NewSyscallError("writev", g.err)}
		}
	}
	return g.written, nil
}

// gather is a write of several chunks. RawConn.Write wants a closure, so it is pooled
// together with its own.
type gather struct {
	vec  [batchSize]syscall.Iovec
	rest []syscall.Iovec // of vec, yet to be written
	err  error
	fn   func(fd uintptr) bool

	written int // bytes
}

var gathers = sync.Pool{New: func() any {
	g := new(gather)
	g.fn = g.writeOn
	return g
}}

// fill prepares to write src, at most batchSize chunks.
func (g *gather) fill(src []Chunk) {
	g.rest, g.err = g.vec[:0], nil
	for _, c := range src {
		if c.Len() > 0 {
			v := syscall.Iovec{Base: unsafe.SliceData(c.Bytes())}
			v.SetLen(c.Len())
			g.rest = append(g.rest, v)
		}
	}
}

// writeOn writes what the kernel takes; false asks the poller to wait for more room.
func (g *gather) writeOn(fd uintptr) bool {
	for len(g.rest) > 0 {
		n, err := rawCall(syscall.SYS_WRITEV, int(fd), unsafe.Pointer(unsafe.SliceData(g.rest)), len(g.rest))
		switch err {
		case nil:
			g.wrote(n)
		case syscall.EINTR:
		case syscall.EAGAIN:
			return false
		default:
			g.err = err
			return true
		}
	}
	return true
}

// wrote takes the first n bytes off rest.
func (g *gather) wrote(n int) {
	g.written += n
	for n > 0 {
		first := &g.rest[0]
		taken := min(n, int(first.Len))
		n -= taken
		if taken == int(first.Len) {
			g.rest = g.rest[1:]
			continue
		}
		first.Base = (*byte)(unsafe.Add(unsafe.Pointer(first.Base), taken))
		first.SetLen(int(first.Len) - taken)
	}
}
