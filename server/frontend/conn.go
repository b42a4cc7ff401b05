package frontend

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/tunnel"
)

// preface is how an HTTP/2 client, gRPC's, begins (RFC 9113 §3.4); four bytes
// tell it from everything else.
var preface = []byte("PRI ")

// Conn is an accepted connection, after TLS where there is any. Until Begin it
// is cut by the handshake's deadline and by Drain.
type Conn struct {
	tunnel.Conn // what is written goes here; read from Reader first

	// Reader has what was read ahead. Nothing else may read before it.
	Reader *bufio.Reader

	front *Frontend
	raw   net.Conn
	state *tls.ConnectionState
	limit io.LimitedReader // under Reader: bounds what is read ahead of Begin

	uncut func() bool // undoes the cut when the context ends
	drain chan struct{}
	once  sync.Once
	watch sync.WaitGroup

	begun atomic.Bool
}

// TLS is the connection's TLS state, or nil.
func (c *Conn) TLS() *tls.ConnectionState { return c.state }

// Begin ends the handshake: its deadline is lifted, and Drain does not cut the
// connection any more. It returns false if it was cut already.
func (c *Conn) Begin() bool {
	c.release()
	if c.raw.SetDeadline(time.Time{}) != nil {
		return false
	}
	c.begun.Store(true)
	return true
}

// hurry cuts a connection that takes too long to begin once Drain was called.
func (c *Conn) hurry() {
	select {
	case <-c.front.drained:
	case <-c.drain:
		return
	}
	select {
	case <-time.After(drainHandshake):
		c.cut()
	case <-c.drain:
	}
}

// Whole is the connection with what was read ahead back in front of it; Reader
// must not be used any more.
func (c *Conn) Whole() tunnel.Conn {
	head, _ := c.Reader.Peek(c.Reader.Buffered())
	return tunnel.Unread(c.Conn, head)
}

// Refuse counts the connection as one that there was no room for; why is for
// the log.
func (c *Conn) Refuse(why string) {
	c.front.cfg.Metrics.Rejected(c.front.cfg.Name, "limit")
	c.front.warn.log(c.front.cfg.Log.WithField("remote", c.raw.RemoteAddr().String()), "a connection of "+c.front.cfg.Name+" was refused: "+why)
}

// reject counts the connection as one that never became a request. err says
// why, for the log.
func (c *Conn) reject(err error) {
	reason := "protocol"
	var timeout net.Error
	switch {
	case c.front.ended(context.Background()), errors.Is(err, io.EOF), errors.Is(err, net.ErrClosed):
		reason = "closed"
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		reason = "timeout"
	case c.state == nil && c.front.tls != nil:
		reason = "tls"
	}
	c.front.cfg.Metrics.Rejected(c.front.cfg.Name, reason)
	log := c.front.cfg.Log.WithError(err).WithField("remote", c.raw.RemoteAddr().String())
	if reason == "tls" {
		// The operator must see a certificate that does not fit, but a port
		// scanner must not fill the log.
		c.front.warn.log(log, "a TLS handshake of "+c.front.cfg.Name+" failed")
		return
	}
	log.Debug("a connection of " + c.front.cfg.Name + " came to nothing")
}

// recognise does the TLS handshake and finds the handler.
func (c *Conn) recognise(ctx context.Context) (Handler, error) {
	f := c.front
	if f.tls == nil {
		c.Conn = tunnel.Wrap(c.raw)
		return c.sniff()
	}
	secure := tls.Server(c.raw, f.tls)
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, err
	}
	state := secure.ConnectionState()
	c.Conn, c.state = tunnel.Wrap(secure), &state
	switch proto := state.NegotiatedProtocol; {
	case proto == "":
		return c.sniff()
	case proto == f.cfg.LinkALPN && f.cfg.Link != nil:
		c.buffer()
		return f.cfg.Link, nil
	case proto == "h2" && f.cfg.GRPC != nil:
		c.buffer()
		return f.cfg.GRPC, nil
	case proto == "http/1.1" && f.cfg.Connect != nil:
		c.buffer()
		return f.cfg.Connect, nil
	default:
		return nil, errors.New("the protocol " + proto + " was agreed on and is not served")
	}
}

func (c *Conn) buffer() {
	c.limit = io.LimitedReader{R: c.Conn, N: maxHeader}
	c.Reader = bufio.NewReaderSize(&c.limit, readAhead)
}

// sniff tells gRPC from HTTP/1.1 by the first bytes. The link is never guessed:
// it is chosen by ALPN alone (docs/link-protocol.md).
func (c *Conn) sniff() (Handler, error) {
	c.buffer()
	f := c.front
	if f.cfg.GRPC == nil && f.cfg.Connect == nil {
		return nil, errors.New("no protocol was chosen by ALPN")
	}
	for n := 1; n <= len(preface); n++ {
		first, err := c.Reader.Peek(n)
		if err != nil {
			return nil, err
		}
		if !bytes.HasPrefix(preface, first) {
			if f.cfg.Connect == nil {
				return nil, errors.New("this is not gRPC")
			}
			return f.cfg.Connect, nil
		}
	}
	if f.cfg.GRPC != nil {
		return f.cfg.GRPC, nil
	}
	return f.cfg.Connect, nil // which answers it with an error
}

// cut ends the connection under whoever reads or writes it.
func (c *Conn) cut() { _ = c.raw.Close() }

// release lets go of what cuts a connection in its handshake.
func (c *Conn) release() {
	c.once.Do(func() {
		c.uncut()
		close(c.drain)
	})
	c.watch.Wait()
}

// finish frees everything once the handler is done.
func (c *Conn) finish() {
	c.release()
	if c.Conn != nil && c.begun.Load() {
		_ = c.Conn.Close()
		return
	}
	// A peer that did not get through a handshake gets no goodbye that could
	// block.
	_ = c.raw.Close()
}
