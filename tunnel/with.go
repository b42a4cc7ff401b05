package tunnel

import (
	"net"
	"sync"
	"time"
)

// Parts are what With puts in the place of a Conn's own. What is nil stays.
type Parts struct {
	In    Source // reads go here
	Out   Sink   // writes go here; Nonblocking only where the Conn's own is, whose CloseWrite stays
	Ended func() // called once, after the first Close, CloseFor or Reset

	Local, Remote net.Addr // what the Conn calls its ends
}

// With is c with some of its parts replaced. Everything else is c's.
func With(c Conn, p Parts) Conn {
	w := &refitted{base: c, in: p.In, out: p.Out, local: p.Local, remote: p.Remote}
	if w.in == nil {
		w.in = c.In()
	}
	if w.out == nil {
		w.out = c.Out()
	}
	if p.Ended != nil {
		w.ended = sync.OnceFunc(p.Ended)
	}
	return w
}

// refitted names each method and embeds nothing: a method that Conn gets some
// day must not bypass its parts unseen.
type refitted struct {
	base  Conn
	in    Source
	out   Sink
	ended func() // nil: nobody is to be told

	local, remote net.Addr // nil: the base's
}

func (w *refitted) In() Source { return w.in }
func (w *refitted) Out() Sink  { return w.out }

func (w *refitted) Read(p []byte) (int, error)  { return w.in.Read(p) }
func (w *refitted) Write(p []byte) (int, error) { return w.out.Write(p) }

func (w *refitted) CloseWrite() error { return w.base.CloseWrite() }
func (w *refitted) Failed() error     { return w.base.Failed() }

func (w *refitted) Close() error {
	err := w.base.Close()
	w.end()
	return err
}

func (w *refitted) CloseFor(cause error) error {
	err := w.base.CloseFor(cause)
	w.end()
	return err
}

func (w *refitted) Reset(cause error) error {
	err := w.base.Reset(cause)
	w.end()
	return err
}

func (w *refitted) end() {
	if w.ended != nil {
		w.ended()
	}
}

// NetConn is the Conn as it was.
func (w *refitted) NetConn() net.Conn { return w.base }

func (w *refitted) LocalAddr() net.Addr {
	if w.local != nil {
		return w.local
	}
	return w.base.LocalAddr()
}

func (w *refitted) RemoteAddr() net.Addr {
	if w.remote != nil {
		return w.remote
	}
	return w.base.RemoteAddr()
}

func (w *refitted) SetDeadline(t time.Time) error      { return w.base.SetDeadline(t) }
func (w *refitted) SetReadDeadline(t time.Time) error  { return w.base.SetReadDeadline(t) }
func (w *refitted) SetWriteDeadline(t time.Time) error { return w.base.SetWriteDeadline(t) }
