package httpsproxy

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

const (
	// byteWeight is how often net/http holds what a client has sent of a header,
	// which it parses as it arrives, and fieldWeight at least what each field takes
	// beyond that: 64 KiB of fields of seven bytes take 1 MiB.
	byteWeight  = 2
	fieldWeight = 150
)

// client is one connection of a client, from which net/http reads requests: its
// methods are for net/http. Everything else uses conn.
type client struct {
	conn tunnel.Conn
	admission.Slot
	ctx     context.Context // ends when the connection is to be cut
	drained <-chan struct{} // closed when it must take no more requests
	ended   func()          // called once, when the connection is no longer used

	halfClose time.Duration // halfCloseTime

	served atomic.Bool // it has had a request

	// Of the one goroutine that reads.
	heard bool  // it has sent something
	asked bool  // its request's header is complete
	held  int64 // what it costs as long as that is not

	slots *admission.Slots[*client]

	// Of the goroutine that serves requests.
	proven   [32]byte  // hash of the credentials that were accepted
	unread   bool      // there may be unread bytes behind the last response
	patience *patience // of the request; set while nobody reads

	deaf atomic.Bool // nothing more must be read; see stopReading
}

type clientKey struct{}

func clientOf(ctx context.Context) *client { return ctx.Value(clientKey{}).(*client) }

// start serves conn on goroutines of its own, and calls ended after the last of
// them has ended. It does not block.
func (s *Server) start(ctx context.Context, drained <-chan struct{}, conn tunnel.Conn, ended func()) {
	c := &client{conn: conn, drained: drained, unread: true, halfClose: s.halfClose, held: waitingBytes, slots: s.Slots}
	if !s.Admit(c, conn.RemoteAddr()) {
		ended()
		return
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.Reset(context.Cause(ctx)) })
	c.ctx = context.WithValue(ctx, clientKey{}, c)
	c.ended = func() {
		stop()
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
		c.patience, c.asked = newPatience(), true
	case http.StateIdle:
		c.asked, c.held = false, 0
		if !s.Slots.Await(c, c.leaving) {
			_ = c.conn.Close()
		}
	case http.StateClosed:
		c.ended()
	}
}

// weigh counts what net/http keeps of a header that is on its way.
func (c *client) weigh(read []byte) {
	c.held += byteWeight*int64(len(read)) + fieldWeight*int64(bytes.Count(read, []byte("\n")))
	c.slots.Weigh(c, c.held)
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

// CloseWrite is how net/http takes leave of a client that still sends.
func (c *client) CloseWrite() error { return c.conn.CloseWrite() }

func (c *client) Write(p []byte) (int, error)        { return c.conn.Write(p) }
func (c *client) LocalAddr() net.Addr                { return c.conn.LocalAddr() }
func (c *client) RemoteAddr() net.Addr               { return c.conn.RemoteAddr() }
func (c *client) SetWriteDeadline(t time.Time) error { return c.conn.SetWriteDeadline(t) }

// SetDeadline is for both directions. It does not concern patience: net/http
// stops a Read by SetReadDeadline.
func (c *client) SetDeadline(t time.Time) error { return c.conn.SetDeadline(t) }

// Close is how net/http ends the connection; the client can read everything to
// the end.
func (c *client) Close() error {
	if c.unread {
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
