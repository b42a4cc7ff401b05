package link

import (
	"net"
	"syscall"
	"time"

	"konnectivity/tunnel"
)

// socket tunes the socket under a link that sends bulk. But for raw, it is the writer's.
type socket struct {
	raw        syscall.RawConn // immutable; nil: there is none
	looked     time.Time       // when unsent was adapted last
	unsent     unsent
	congestion congestion
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

// beforeTurn is called with the size of each turn.
func (s *socket) beforeTurn(size int) {
	if size < bulkTurn || s.raw == nil {
		return
	}
	now := time.Now()
	since := now.Sub(s.looked)
	unsent, line := since >= lookEvery, s.congestion.due(now)
	if !unsent && !line {
		return
	}
	_ = s.raw.Control(func(fd uintptr) {
		if unsent {
			s.looked = now
			s.unsent.look(fd, since < 2*lookEvery)
		}
		if line {
			s.congestion.look(fd, now)
		}
	})
}
