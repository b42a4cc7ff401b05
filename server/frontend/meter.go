package frontend

import (
	"context"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"syscall"

	"konnectivity/internal/admission"
	"konnectivity/tunnel"
)

var errTooMuch = errors.New("the peer sent more bytes than a handshake has")

// meter counts what a peer sends before it has begun, below TLS: TLS and gRPC buffer it before
// they know whether it is valid. Once the connection has begun, meter only
// passes bytes on.
type meter struct {
	net.Conn
	owner *Conn
	off   atomic.Bool // the connection has begun

	first [1]byte // the byte that shows that the peer sends anything
	head  []byte  // bytes read ahead: first, or those behind a PROXY header; used by the reader alone

	left    atomic.Int64 // how many more bytes may come
	read    atomic.Int64
	weighed int64 // of read; used by the reader alone

	// During the TLS handshake, and used by it alone. It computes between a read
	// and what it does next on the connection: another read, or a write, which a
	// peer that does not read might hold up.
	turns *admission.Queue // nil before and after
	mine  bool             // the turn
}

// compute waits for a turn.
func (m *meter) compute() error {
	if m.turns == nil || m.mine {
		return nil
	}
	t := &m.owner.turn
	t.Source = admission.SourceOf(m.owner.remote)
	if m.turns.Wait(context.Background(), t) != nil { // only Leave ends the wait
		return errEvicted
	}
	m.mine = true
	return nil
}

// rest gives the turn back.
func (m *meter) rest() {
	if m.mine {
		m.mine = false
		m.turns.Done(&m.owner.turn)
		m.owner.turn.Class = begunHandshakes
	}
}

// NetConn returns the metered connection.
func (m *meter) NetConn() net.Conn { return m.Conn }

// RemoteAddr is where the peer is, behind a load balancer too: whatever is built
// on the connection logs and shows it.
func (m *meter) RemoteAddr() net.Addr { return m.owner.remote }

// SyscallConn gives access to the socket below the meter.
func (m *meter) SyscallConn() (syscall.RawConn, error) {
	if s, ok := m.Conn.(syscall.Conn); ok {
		return s.SyscallConn()
	}
	return nil, syscall.EINVAL
}

// await returns when the peer has sent something. Until then neither TLS nor a
// buffer is needed.
func (m *meter) await() error {
	n, err := m.Conn.Read(m.first[:])
	m.head = m.first[:n]
	if tunnel.CodeOf(err) == tunnel.CodePeerReset { // as probes of some load balancers end
		return io.EOF
	}
	return err
}

// Read implements net.Conn.
func (m *meter) Read(p []byte) (int, error) {
	if len(m.head) > 0 {
		n := copy(p, m.head)
		m.head = m.head[n:]
		return n, m.compute()
	}
	if m.off.Load() {
		return m.Conn.Read(p)
	}
	m.rest()
	left := m.left.Load()
	if left <= 0 {
		return 0, errTooMuch
	}
	n, err := m.Conn.Read(p[:min(int64(len(p)), left)])
	m.left.Add(int64(-n))
	if read := m.read.Add(int64(n)); read-m.weighed >= weighEvery {
		m.weighed = read
		m.owner.weigh()
	}
	if err == nil {
		err = m.compute()
	}
	return n, err
}

// Write implements net.Conn.
func (m *meter) Write(p []byte) (int, error) {
	m.rest()
	return m.Conn.Write(p)
}
