package tunnel

import (
	"sync/atomic"
	"syscall"
	"time"
)

// sourceLook is how often a relay that writes looks whether its sources are
// still there. Rarely enough to cost nothing beside bulk, and by 65,536 stalled
// connections at once; often enough that a client which is gone and a
// destination which stalls do not keep each other's memory for long.
const sourceLook = 2 * time.Second

// sourceWatch notices that the source of a direction was reset while its
// destination takes nothing: nobody reads from the source then, and the kernel
// tells of a reset only who does. It is a timer while bytes flow or are held,
// and nothing once the connection is idle. A source that ended in order, behind
// bytes that still wait, is left alone.
type sourceWatch struct {
	halves [2]*half
	armed  atomic.Bool
	timer  *time.Timer // while armed; guarded by relayWatch.mu
}

// lookSoon is called as a write begins, with its half's held set before, so
// that either it sees that look has ended or look sees the write.
func (w *relayWatch) lookSoon() {
	if s := &w.sources; !s.armed.Load() && s.armed.CompareAndSwap(false, true) {
		w.mu.Lock()
		defer w.mu.Unlock()
		if !w.done {
			s.timer = time.AfterFunc(sourceLook, w.look)
		}
	}
}

func (w *relayWatch) look() {
	s := &w.sources
	w.mu.Lock()
	s.timer = nil
	w.mu.Unlock()
	s.armed.Store(false)
	for _, h := range s.halves {
		if !h.held.Load() {
			continue
		}
		if failed(h.src) {
			h.lost(syscall.ECONNRESET)
			return
		}
		w.lookSoon()
	}
}

// failed asks the socket under c whether it was reset or has timed out. What is
// no socket, such as a tunnel, tells by itself.
func failed(c Conn) (failed bool) {
	socket, ok := Under[syscall.Conn](c)
	if !ok {
		return false
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return false
	}
	_ = raw.Control(func(fd uintptr) { failed = poll(fd)&pollErr != 0 })
	return failed
}
