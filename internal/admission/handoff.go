package admission

import (
	"context"
	"net"

	"konnectivity/tunnel"
)

// HandOff is a net.Listener for connections that another listener has accepted. Any
// goroutine may call its methods.
type HandOff struct {
	addr  net.Addr
	conns chan net.Conn
	done  tunnel.Event // closed
}

// NewHandOff makes one that says that it listens at addr.
func NewHandOff(addr net.Addr) *HandOff {
	return &HandOff{addr: addr, conns: make(chan net.Conn)}
}

// Give passes conn to Accept, and waits until that takes it. It returns false if
// the listener is closed, or ctx has ended; conn is then the caller's still.
func (h *HandOff) Give(ctx context.Context, conn net.Conn) bool {
	select {
	case h.conns <- conn:
		return true
	case <-h.done.Done():
	case <-ctx.Done():
	}
	return false
}

// Accept implements net.Listener. After Close it returns net.ErrClosed.
func (h *HandOff) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.done.Done():
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (h *HandOff) Close() error {
	h.done.Happen()
	return nil
}

// Addr implements net.Listener.
func (h *HandOff) Addr() net.Addr { return h.addr }
