package httpsproxy

import (
	"maps"
	"net/http"
	"net/textproto"
	"time"

	"konnectivity/tunnel"
)

const (
	// maxInterim is more interim responses than any request has use for: a
	// 102 (Processing) every few seconds until ResponseTimeout, and a few 103.
	maxInterim = 100

	// maxInterimHeader bounds their headers together, as one response's is.
	maxInterimHeader = maxResponseHeader

	// fieldOverhead is what a field costs beside its name and value, so that
	// many short ones are no way around the bound.
	fieldOverhead = 32
)

// errInterim ends an exchange whose destination goes on announcing a response
// and does not give one.
var errInterim = &tunnel.DialError{Failure: tunnel.FailReset, Reason: "the destination sent too many interim responses"}

// interim counts what a destination sent before its response.
type interim struct{ responses, bytes int }

// admit takes one more into account; false means that it is too much.
func (i *interim) admit(header textproto.MIMEHeader) bool {
	i.responses++
	for name, values := range header {
		for _, value := range values {
			i.bytes += len(name) + len(value) + fieldOverhead
		}
	}
	return i.responses <= maxInterim && i.bytes <= maxInterimHeader
}

// inform passes an interim response on (RFC 9110 §15.2). 100 (Continue) is sent
// by net/http when the transport, having got it, first reads the content; to
// keep out of its way nothing else is sent to a client that waits for it. An
// error ends the exchange.
func (x *exchange) inform(code int, header textproto.MIMEHeader) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.interim.admit(header) {
		return errInterim
	}
	if x.answered || x.ctx.Err() != nil || code == http.StatusContinue || !x.req.ProtoAtLeast(1, 1) || x.req.Header["Expect"] != nil {
		return nil
	}
	h := http.Header(header).Clone()
	dropHopByHop(h)
	// net/http keeps what one interim response has for the next.
	clear(x.Header())
	maps.Copy(x.Header(), h)
	defer clear(x.Header())
	// giveUp waits for mu, so the write is bounded here.
	bound := replyTimeout
	if idle := x.server.opts.Connect.Idle; idle > 0 {
		bound = min(bound, idle)
	}
	_ = x.rc.SetWriteDeadline(time.Now().Add(bound))
	x.ResponseWriter.WriteHeader(code)
	_ = x.rc.SetWriteDeadline(time.Time{})
	return nil
}
