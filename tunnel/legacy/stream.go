package legacy

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
)

// stream is what both kinds of connection have in common: dialed by this side
// (opened) or by the peer (served).
type stream struct {
	m      *mux
	id     int64
	duplex bool // the peer knows half-close
	in     recvQueue
	out    sendQueue
	local  tunnel.Addr
	remote tunnel.Addr
	lastUp atomic.Bool // data was written after data last came

	mu  sync.Mutex
	end ending
}

// endpoint is a connection as its mux sees it. The mux calls receive from its
// read loop only.
type endpoint interface {
	receive(batch []tunnel.Chunk)
	lost(err error) // the gRPC stream is gone
}

// init makes a stream that reset ends if nobody reads it.
func (s *stream) init(m *mux, id int64, duplex bool, reset func(cause error) error) {
	s.m, s.id, s.duplex = m, id, duplex
	s.in.init()
	s.in.limits, s.in.metrics, s.in.segment = &m.limits, m.metrics, m.inbound
	s.in.onStall = func() {
		m.metrics.Stalled(m.inbound)
		_ = reset(&tunnel.ResetError{Code: tunnel.CodeStalled})
	}
	s.out.init(m.sender, id)
}

// lost implements endpoint. What was received can still be read.
func (s *stream) lost(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end.take(forget)
	s.end.stop()
	s.in.finish(err)
	s.out.fail(err)
}

// In implements tunnel.Conn: a stream is both sides of itself.
func (s *stream) In() tunnel.Source { return s }

// Out implements tunnel.Conn.
func (s *stream) Out() tunnel.Sink { return s }

// Read implements net.Conn.
func (s *stream) Read(p []byte) (int, error) { return s.in.read(p) }

// ReadChunks implements tunnel.Source.
func (s *stream) ReadChunks(dst []tunnel.Chunk) (int, error) { return s.in.take(dst) }

// Deliver implements tunnel.Source. What comes has to wait in recvQueue anyway,
// which is all the flow control there is.
func (s *stream) Deliver(tunnel.Receiver) bool { return false }

// Write implements net.Conn. It blocks while the peer does not take more; what
// it has accepted is sent unless the connection is reset.
func (s *stream) Write(p []byte) (int, error) {
	s.lastUp.Store(true)
	done := 0
	for {
		n := min(len(p)-done, tunnel.ChunkSize)
		if err := s.out.put(tunnel.CopyChunk(p[done : done+n])); err != nil {
			return done, err
		}
		if done += n; done == len(p) {
			return done, nil
		}
	}
}

// WriteChunks implements tunnel.Sink.
func (s *stream) WriteChunks(src []tunnel.Chunk) error {
	s.lastUp.Store(true)
	for i, c := range src {
		src[i] = tunnel.Chunk{}
		if err := s.out.put(c); err != nil {
			tunnel.ReleaseAll(src[i+1:])
			return err
		}
	}
	return nil
}

// Nonblocking implements tunnel.Sink. To send a little is to queue it, which
// may block.
func (s *stream) Nonblocking() bool { return false }

// TryWrite implements tunnel.Sink.
func (s *stream) TryWrite(tunnel.Chunk) int { return 0 }

// Flush implements tunnel.Sink.
func (s *stream) Flush() {}

// LocalAddr implements net.Conn.
func (s *stream) LocalAddr() net.Addr { return s.local }

// RemoteAddr implements net.Conn.
func (s *stream) RemoteAddr() net.Addr { return s.remote }

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	s.in.setDeadline(t)
	s.out.setDeadline(t)
	return nil
}

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error {
	s.in.setDeadline(t)
	return nil
}

// SetWriteDeadline implements net.Conn.
func (s *stream) SetWriteDeadline(t time.Time) error {
	s.out.setDeadline(t)
	return nil
}

// Failed implements tunnel.Conn.
func (s *stream) Failed() error { return s.in.failure() }

// kill ends both directions at once, with what waits in them.
func (s *stream) kill(err error) {
	s.in.fail(err)
	s.out.fail(err)
}
