package httpsproxy

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

const (
	// halfCloseTime is how long after a client has ended its side, with nothing
	// sent to it, the client is considered gone. TCP does not distinguish a client
	// that left from one that has sent everything and listens (nc -N, busybox nc):
	// the first must not keep a watch open for long, and the second must not lose
	// its response.
	halfCloseTime = 3 * time.Second

	// byteWeight is how many copies net/http holds of the part of a header that was read,
	// which it parses as it arrives, and fieldWeight at least what each field takes
	// beyond that: 64 KiB of fields of seven bytes take 1 MiB.
	byteWeight  = 2
	fieldWeight = 150
)

// client is one connection of a client, from which net/http reads requests: its
// methods are for net/http. Everything else uses conn.
type client struct {
	net.Conn // conn, for the methods that are not replaced here
	conn     tunnel.Conn
	admission.Slot
	server  *Server
	ctx     context.Context // ends when the connection is to be cut, or is dismissed
	dismiss context.CancelFunc
	drained <-chan struct{} // closed when it must take no more requests
	ended   func()          // called once, when the connection is no longer used

	served atomic.Bool // it has had a request

	// Of the one goroutine that reads.
	heard bool  // it has sent something
	asked bool  // its request's header is complete
	held  int64 // what it costs as long as that is not; 0: nothing of it was read

	// Of the goroutine that serves requests.
	proven [32]byte  // hash of the credentials that were accepted
	unread bool      // there may be unread bytes behind the last response
	sent   *progress // of the response; replaced between two reads
	kept   int64     // bytes that count in Server.headers

	deaf atomic.Bool // nothing more must be read; see stopReading
}

type clientKey struct{}

func clientOf(ctx context.Context) *client { return ctx.Value(clientKey{}).(*client) }

// start serves conn on goroutines of its own, and calls ended after the last of
// them has ended. It does not block.
func (s *Server) start(ctx context.Context, drained <-chan struct{}, conn tunnel.Conn, ended func()) {
	c := &client{Conn: conn, conn: conn, drained: drained, unread: true, held: waitingBytes, server: s}
	c.ctx, c.dismiss = context.WithCancel(context.WithValue(ctx, clientKey{}, c)) // before a drain can see it
	if !s.Admit(c, conn.RemoteAddr()) {
		c.dismiss()
		ended()
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Reset(context.Cause(ctx)) })
	c.ended = func() {
		stop()
		c.forget()
		c.dismiss()
		_ = conn.Close()
		if evicted := s.Slots.Release(c); evicted {
			s.Metrics.Refuse("")
		}
		ended()
	}
	// Serve returns as soon as a goroutine serves the one connection.
	_ = s.http.Serve(&single{client: c})
}

// newHTTP is the part of net/http that reads requests.
func (s *Server) newHTTP() *http.Server {
	only1 := new(http.Protocols)
	only1.SetHTTP1(true)
	return &http.Server{
		Handler:                      http.HandlerFunc(s.serveHTTP),
		Protocols:                    only1,
		ReadHeaderTimeout:            s.opts.handshakeTimeout,
		IdleTimeout:                  s.opts.keepAlive,
		MaxHeaderBytes:               maxHeader,
		DisableGeneralOptionsHandler: true,
		ErrorLog:                     logging.HTTPErrorLog(s.Log),
		BaseContext:                  func(ln net.Listener) context.Context { return ln.(*single).client.ctx },
		ConnState:                    s.connState,
	}
}

// connState follows net/http. A hijacked connection is ended by its hijacker.
func (s *Server) connState(conn net.Conn, state http.ConnState) {
	c := conn.(*client)
	switch state {
	case http.StateActive:
		c.sent, c.asked = newProgress(), true
	case http.StateIdle:
		c.asked, c.held = false, 0
		c.forget()
		if !s.Slots.Await(c, c.leaving) {
			_ = c.conn.Close()
		}
	case http.StateClosed:
		c.ended()
	}
}

// weigh counts what net/http keeps of a header that is on its way.
func (c *client) weigh(read []byte) {
	c.held = cmp.Or(c.held, begunBytes)
	c.held += weightOf(read)
	c.server.Slots.Weigh(c, c.held)
}

// weightOf is what net/http takes for a part of a header.
func weightOf(part []byte) int64 {
	return byteWeight*int64(len(part)) + fieldWeight*int64(bytes.Count(part, []byte("\n")))
}

// leaving reports whether c must take no more requests.
func (c *client) leaving() bool { return tunnel.Closed(c.drained) }

// Abandon implements admission.Holder: there is no room for the connection.
func (c *client) Abandon() {
	_ = c.conn.Reset(&tunnel.ResetError{Code: tunnel.CodeMemory})
}

// detach continues with the connection, hijacked from net/http, on a goroutine
// that holds nothing of what net/http keeps for a connection.
func (c *client) detach(serve func()) {
	go func() {
		defer c.ended()
		serve()
	}()
}

// Read is for net/http, which reads a single byte when it has a whole request
// and only waits for the client to leave. It would cancel the request as soon as
// the client ends its side, so that end is withheld for as long as the response
// makes progress: sending to a client that has left soon fails.
func (c *client) Read(b []byte) (int, error) {
	n, err := c.conn.Read(b)
	if n > 0 && !c.heard {
		if c.heard = true; !beginsHTTP(b[0]) {
			_ = c.conn.SetWriteDeadline(time.Now().Add(replyTimeout))
			_, _ = c.conn.Write(foreignRefusal.message("HTTP/1.1"))
			return 0, io.EOF // net/http would wait for the end of a line that never comes
		}
	}
	if n > 0 && !c.asked {
		c.weigh(b[:n])
	}
	if err == io.EOF && len(b) == 1 && c.sent != nil && c.sent.stall(c.ctx.Done(), halfCloseTime) {
		err = os.ErrDeadlineExceeded // net/http stops a read by its deadline
	}
	return n, err
}

// SetReadDeadline is for net/http. A deadline long ago stops a Read.
func (c *client) SetReadDeadline(t time.Time) error {
	if c.deaf.Load() {
		t = longAgo
	}
	if c.sent != nil && !t.IsZero() && t.Before(time.Now()) {
		c.sent.stop()
	}
	return c.conn.SetReadDeadline(t)
}

// stopReading ends reads, now and later. After an early response net/http would
// first discard the rest of the request's content, for as long as the client
// pleases.
func (c *client) stopReading() {
	c.deaf.Store(true)
	_ = c.conn.SetReadDeadline(longAgo)
}

// beginsHTTP reports whether a request can begin with b: a method is a token
// (RFC 9110 §5.6.2). SOCKS and TLS begin otherwise, as from a client whose proxy
// URL says https. Of all other bytes, only those that begin other protocols are
// recognised here; net/http answers the rest.
func beginsHTTP(b byte) bool { return b >= ' ' && b < 0x7f || b == '\r' || b == '\n' }

// CloseWrite is how net/http takes leave of a client that still sends.
func (c *client) CloseWrite() error { return c.conn.CloseWrite() }

// Close is how net/http ends the connection; the client can read everything to
// the end.
func (c *client) Close() error {
	switch {
	case c.deaf.Load():
		admission.Drain(c.conn)
	case c.unread:
		admission.HangUp(c.conn, nil)
	}
	return c.conn.Close()
}

// single is a listener with one connection.
type single struct {
	client *client
	taken  bool // of the one goroutine in http.Server.Serve
}

// Accept returns the connection, then io.EOF.
func (l *single) Accept() (net.Conn, error) {
	if l.taken {
		return nil, io.EOF
	}
	l.taken = true
	return l.client, nil
}

// Close does nothing: the connection outlives its listener.
func (l *single) Close() error { return nil }

// Addr is the connection's.
func (l *single) Addr() net.Addr { return l.client.LocalAddr() }
