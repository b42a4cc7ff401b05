package httpsproxy

import (
	"fmt"
	"net/http"
	"time"
)

// turnAway answers a client whose first byte cannot begin an HTTP request: it
// speaks SOCKS, or TLS because its proxy URL says https. net/http would wait
// for the end of a line that never comes, and so would the client. The answer
// makes clients of these protocols fail at once; curl and Go name the cause.
func (c *client) turnAway() {
	const text = "This port speaks HTTP: give clients a proxy URL that begins with http://.\n"
	_ = c.conn.SetWriteDeadline(time.Now().Add(replyTimeout))
	_, _ = fmt.Fprintf(c.conn, "HTTP/1.1 %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s",
		http.StatusBadRequest, http.StatusText(http.StatusBadRequest), len(text), text)
}

// beginsHTTP reports whether a request can begin with b: a method is a token
// (RFC 9110 §5.6.2). Of all other bytes, only those that begin other protocols
// are recognised here; net/http answers the rest.
func beginsHTTP(b byte) bool { return b >= ' ' && b < 0x7f || b == '\r' || b == '\n' }
