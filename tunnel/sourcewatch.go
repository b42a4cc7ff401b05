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

// takenUnread is what every destination takes though nobody reads: a link's
// window is 16 KiB at the least, and a socket's buffers are larger. No direction
// stalls before it has carried more, so that short connections, of which there
// may be thousands a second, need no timer.
const takenUnread = 8 << 10

// sourceWatch notices that the source of a direction has failed while its
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
		if cause := failed(h.src); cause != nil {
			h.lost(cause)
			return
		}
		w.lookSoon()
	}
}

// Failer is a Conn over something else than a socket that can be asked whether
// it has failed. A Source needs not be asked.
type Failer interface {
	// Failed tells why reads will fail once what has come was read; nil where
	// they will not as yet, or will find an end in order. It may be called at
	// any time from anywhere.
	Failed() error
}

// failed asks c, or what lies under it, whether it was reset or has timed out.
func failed(c Conn) (cause error) {
	if f, ok := Under[Failer](c); ok {
		return f.Failed()
	}
	socket, ok := Under[syscall.Conn](c)
	if !ok {
		return nil
	}
	raw, err := socket.SyscallConn()
	if err != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) {
		if poll(fd)&pollErr != 0 {
			cause = syscall.ECONNRESET
		}
	})
	return cause
}
