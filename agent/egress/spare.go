package egress

import (
	"context"
	"sync/atomic"
	"syscall"

	"konnectivity/tunnel"
)

// spare is how many descriptors may be taken when a socket for a destination is
// made, by whatever; 0: any number. However many connections there are, and dials
// with a socket for each address, the rest is left to links, probes and files.
type spare struct {
	most    int
	refused atomic.Int64 // sockets
}

// control refuses a socket before it connects, as net.Dialer.ControlContext. Systems
// give out the lowest number that is free, so its own tells how many are taken.
func (s *spare) control(_ context.Context, _, _ string, socket syscall.RawConn) error {
	if s.most <= 0 {
		return nil
	}
	number := 0
	if err := socket.Control(func(fd uintptr) { number = int(fd) }); err != nil {
		return err
	}
	if number < s.most {
		return nil
	}
	s.refused.Add(1)
	return &tunnel.DialError{Failure: tunnel.FailExhausted, Err: syscall.EMFILE}
}
