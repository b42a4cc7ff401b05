package tunnel

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Parts are what With puts in the place of a Conn's own. A part that is nil stays.
type Parts struct {
	In    Source // reads go here
	Out   Sink   // writes go here; Nonblocking only where the Conn's own is, whose CloseWrite stays
	Ended func() // called once, after the first Close, CloseFor or Reset

	Local, Remote net.Addr // what the Conn calls its ends
}

// With returns c with some of its parts replaced. Everything else is c's.
func With(c Conn, p Parts) Conn {
	if p.In == nil {
		p.In = c.In()
	}
	if p.Out == nil {
		p.Out = c.Out()
	}
	if p.Ended == nil {
		p.Ended = func() {}
	} else {
		p.Ended = sync.OnceFunc(p.Ended)
	}
	return &refitted{base: c, parts: p}
}

// To returns c, a tunnel by CONNECT, with the destination of f as its far end in place of the
// proxy: libraries dial that again, as pgx does to cancel a query.
func To(c Conn, f *Flow) Conn {
	return With(c, Parts{Remote: Addr{Net: f.Network, Text: f.Address}})
}

// refitted names each method and embeds nothing: a method that Conn gets some
// day must not bypass its parts unseen.
type refitted struct {
	base  Conn
	parts Parts // Local and Remote may be nil: the base's
	over  atomic.Bool
}

func (w *refitted) In() Source { return w.parts.In }
func (w *refitted) Out() Sink  { return w.parts.Out }

// Read implements net.Conn. Of a Conn that is closed, a part may still have bytes, and TLS may
// blame the record that was cut off.
func (w *refitted) Read(p []byte) (int, error) {
	n, err := w.parts.In.Read(p)
	if w.over.Load() {
		return 0, net.ErrClosed
	}
	return n, err
}

func (w *refitted) Write(p []byte) (int, error) { return w.parts.Out.Write(p) }

func (w *refitted) CloseWrite() error { return w.base.CloseWrite() }
func (w *refitted) Failed() error     { return w.base.Failed() }

func (w *refitted) Close() error {
	w.over.Store(true)
	defer w.parts.Ended()
	return w.base.Close()
}

func (w *refitted) CloseFor(cause error) error {
	w.over.Store(true)
	defer w.parts.Ended()
	return w.base.CloseFor(cause)
}

func (w *refitted) Reset(cause error) error {
	w.over.Store(true)
	defer w.parts.Ended()
	return w.base.Reset(cause)
}

// NetConn returns the Conn as it was.
func (w *refitted) NetConn() net.Conn { return w.base }

func (w *refitted) LocalAddr() net.Addr {
	if w.parts.Local != nil {
		return w.parts.Local
	}
	return w.base.LocalAddr()
}

func (w *refitted) RemoteAddr() net.Addr {
	if w.parts.Remote != nil {
		return w.parts.Remote
	}
	return w.base.RemoteAddr()
}

func (w *refitted) SetDeadline(t time.Time) error      { return w.base.SetDeadline(t) }
func (w *refitted) SetReadDeadline(t time.Time) error  { return w.base.SetReadDeadline(t) }
func (w *refitted) SetWriteDeadline(t time.Time) error { return w.base.SetWriteDeadline(t) }

// Unread returns c with p put back in front of the bytes that c has yet to deliver. It
// is for a caller that has read ahead to learn what a connection carries: pipelined
// bytes of a handshake, a peeked first byte. p is copied. Reads are as fast as
// before once p was read.
func Unread(c Conn, p []byte) Conn {
	if len(p) == 0 {
		return c
	}
	return With(c, Parts{In: &unread{head: append([]byte(nil), p...), next: c.In()}})
}

// unread reads head before next. Only the reader touches head.
type unread struct {
	head []byte
	next Source
}

func (u *unread) Read(p []byte) (int, error) {
	if len(u.head) == 0 {
		return u.next.Read(p)
	}
	n := copy(p, u.head)
	u.drop(n)
	return n, nil
}

func (u *unread) ReadChunks(dst []Chunk) (int, error) {
	if len(u.head) == 0 {
		return u.next.ReadChunks(dst)
	}
	n := min(len(u.head), ChunkSize)
	dst[0] = CopyChunk(u.head[:n])
	u.drop(n)
	return 1, nil
}

// Deliver leaves the turn to its caller, as every Source does, and the caller reads
// the head before the rest.
func (u *unread) Deliver(r Receiver) bool { return u.next.Deliver(r) }

func (u *unread) Rest(r Receiver) bool { return u.next.Rest(r) }

// drop forgets n bytes, and the memory with the last of them.
func (u *unread) drop(n int) {
	if u.head = u.head[n:]; len(u.head) == 0 {
		u.head = nil
	}
}
