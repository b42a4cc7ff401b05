package link

import (
	"cmp"
	"math"
	"net"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"konnectivity/tunnel"
)

// socket tunes the socket under a link that sends bulk. But for raw, it is the writer's.
type socket struct {
	raw        syscall.RawConn // immutable; nil: there is none
	looked     time.Time       // when unsent was adapted last
	unsent     unsent
	congestion congestion
	bound      uint64 // of the last turn
	pacing     pacing
}

const (
	// lookEvery is how often bulk looks at the line, but for BBR (lookAtStart).
	lookEvery = time.Second

	// bulkTurn is the least turn of bulk.
	bulkTurn = tunnel.RecordSize / 2
)

// newSocket sets up the socket under conn. If that fails, the link does without.
func newSocket(conn net.Conn) (s socket) {
	under, ok := tunnel.Under[syscall.Conn](conn)
	if !ok {
		return s
	}
	raw, err := under.SyscallConn()
	if err != nil {
		return s
	}
	s.raw, s.congestion.off = raw, !mayRestart()
	_ = raw.Control(func(fd uintptr) { s.unsent.set(fd, maxUnsent) })
	return s
}

// beforeTurn is called with the size of each turn, and with a bound on what the link may
// send, in bytes per second; 0: none. A bound holds from the next turn of bulk on, but is
// lifted before any turn: there may be no bulk any more, and many small turns.
func (s *socket) beforeTurn(size int, bound uint64) {
	bulk, lifted := size >= bulkTurn, bound == 0 && s.bound > 0
	if s.raw == nil || !bulk && !lifted {
		return
	}
	now := time.Now()
	since := now.Sub(s.looked)
	unsent, line := bulk && since >= lookEvery, bulk && s.congestion.due(now)
	if !unsent && !line && bound == s.bound {
		return
	}
	s.bound = bound
	_ = s.raw.Control(func(fd uintptr) {
		if unsent {
			s.looked = now
			s.unsent.look(fd, since < 2*lookEvery)
		}
		if line {
			s.congestion.look(fd, now)
		}
		s.pacing.set(fd, s.congestion.startup.bound, bound)
	})
}

// pacing is the rate at which the kernel may send (SO_MAX_PACING_RATE), bytes per second; 0:
// any.
type pacing uint64

// maxPacing is the highest that can be set.
const maxPacing = math.MaxInt32

// set sets it to the lower of two bounds; 0 is none.
func (p *pacing) set(fd uintptr, a, b uint64) {
	rate := min(a, b)
	if rate == 0 {
		rate = max(a, b)
	}
	if rate > maxPacing {
		rate = 0
	}
	if pacing(rate) == *p {
		return
	}
	*p = pacing(rate)
	_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, cmp.Or(int(rate), -1))
}
