package httpsproxy

import (
	"net/http"
	"runtime/debug"
	"sync/atomic"
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

// headerRoom is the memory for all headers.
type headerRoom struct {
	max  int64
	used atomic.Int64
}

func newHeaderRoom() *headerRoom {
	return &headerRoom{max: min(debug.SetMemoryLimit(-1)/headerShare, maxHeaders)}
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

// take takes n bytes, and reports whether there is room for them.
func (room *headerRoom) take(n int64) bool {
	if room.used.Add(n) > room.max && n > 0 {
		room.give(n)
		return false
	}
	return true
}

func (room *headerRoom) give(n int64) { room.used.Add(-n) }

// keep takes the memory of a header of the exchange that c has, and reports whether there
// is room for it.
func (c *client) keep(n int64) bool {
	if !c.server.headers.take(n) {
		return false
	}
	c.kept += n
	return true
}

// forget ends what keep began.
func (c *client) forget() {
	c.server.headers.give(c.kept)
	c.kept = 0
}
