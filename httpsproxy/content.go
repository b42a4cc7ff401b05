package httpsproxy

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"sync/atomic"
)

// content is a request's content on its way to the transport.
type content struct {
	io.ReadCloser
	exchange *exchange
	origin   *http.Request // net/http's; its Trailer is filled in at the end
	trailer  http.Header   // where trailers go
	held     bool          // until the client is told to go on
	ended    atomic.Bool
}

// Read is called by the transport, on a goroutine of its own. What it has read
// waits for the destination until it reads more.
func (c *content) Read(p []byte) (int, error) {
	if c.held {
		c.held = false
		c.exchange.goOn()
	}
	c.exchange.rec.flow.Hold(true, false)
	n, err := c.ReadCloser.Read(p)
	c.exchange.rec.flow.Carry(true, n)
	c.exchange.moved()
	switch {
	case err == nil:
		c.exchange.rec.flow.Hold(true, true)
	case err == io.EOF:
		maps.Copy(c.trailer, c.origin.Trailer)
		cleanTrailer(c.trailer, c.origin.Header["Connection"])
		c.ended.Store(true)
	case c.exchange.client.deaf.Load():
		err = errUnwanted
	default:
		err = &clientError{err}
	}
	return n, err
}

// errUnwanted ends a read of content that the destination takes no more of.
var errUnwanted = errors.New("the destination takes no more of the content")

// Close leaves the content to net/http: a destination that reads no more of it
// may still be sending its response.
func (c *content) Close() error { return nil }

// whole reports whether all of it was read, which is true if there is none.
func (c *content) whole() bool { return c == nil || c.ended.Load() }

// responseContent is a response's content on its way to the client.
type responseContent struct {
	io.ReadCloser
	exchange *exchange
	origin   *http.Response // its Trailer is filled in at the end
	options  []string       // its Connection field, which is no longer in the header
}

func (c *responseContent) Read(p []byte) (int, error) {
	n, err := c.ReadCloser.Read(p)
	c.exchange.moved()
	switch err {
	case nil:
	case io.EOF:
		cleanTrailer(c.origin.Trailer, c.options)
	default:
		c.exchange.broken = err
	}
	return n, err
}
