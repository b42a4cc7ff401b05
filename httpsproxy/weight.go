package httpsproxy

import (
	"bytes"
	"errors"
	"net/http"
	"runtime/debug"

	"konnectivity/tunnel/shares"
)

const (
	// maxHeaders bounds the memory of all headers that are kept at once, in bytes, and
	// headerShare as a part of the process's memory limit. The first usualHeader bytes of a
	// header do not count: 30 fields of 60 bytes take as much.
	maxHeaders  = 64 << 20
	headerShare = 8
	usualHeader = 16 << 10

	// A header is kept until its exchange ends, by net/http and for the other side, as
	// text and as maps: so often its bytes, and this for each name and each value. A
	// header of 64 KiB takes up to 620 KiB. A request's first line is kept as it came,
	// and its target without escapes and with those that it should have.
	headerCopies = 2
	lineCopies   = 3
	nameMemory   = 320
	valueMemory  = 56
)

// newHeaderRoom returns the memory for all headers.
func newHeaderRoom() *shares.Pool {
	return shares.NewPool(min(debug.SetMemoryLimit(-1)/headerShare, maxHeaders))
}

// requestMemory is headerMemory of a request.
func requestMemory(r *http.Request) int64 {
	return headerMemory(len(r.Method)+len(r.RequestURI), r.Header)
}

// headerMemory is about what a header takes beyond usualHeader, with a first line of so many
// bytes, in bytes.
func headerMemory(line int, h http.Header) int64 {
	n := lineCopies*line + len(h)*nameMemory
	for name, values := range h {
		for _, v := range values {
			n += valueMemory + headerCopies*(len(name)+len(v))
		}
	}
	return int64(max(0, n-usualHeader))
}

// errHeaders ends an exchange whose destination's header finds no room.
var errHeaders = errors.New("no room is left for the header of the destination's answer")

// partial is what the transport keeps of an answer's header that is on its way.
type partial struct {
	ended bool  // it is whole, or there will be none
	full  bool  // there was no room for it
	held  int64 // what the header costs so far, usualHeader included
	taken int64 // bytes that count in Server.headers
}

// weigh counts the bytes that a read of the answer returned. It fails if there is no room.
func (x *exchange) weigh(read []byte) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	p := &x.partial
	if p.ended {
		return nil
	}
	if end := bytes.Index(read, []byte("\r\n\r\n")); end >= 0 {
		read = read[:end] // no content
	}
	p.held += weightOf(read)
	if n := max(0, p.held-usualHeader) - p.taken; n > 0 {
		if !x.server.headers.Take(n) {
			p.full = true
			return errHeaders
		}
		p.taken += n
	}
	return nil
}

// weighed ends weigh, gives back what that has taken, and says whether there was room. x.mu
// is held.
func (x *exchange) weighed() bool {
	p := &x.partial
	x.server.headers.Give(p.taken)
	p.ended, p.taken = true, 0
	return !p.full
}

// keep takes the memory of a header of the exchange that c has, and reports whether there
// is room for it.
func (c *client) keep(n int64) bool {
	if n > 0 && !c.server.headers.Take(n) { // usual headers are taken also where there is none
		return false
	}
	c.kept += n
	return true
}

// forget ends what keep began.
func (c *client) forget() {
	c.server.headers.Give(c.kept)
	c.kept = 0
}
