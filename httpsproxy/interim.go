package httpsproxy

import (
	"maps"
	"net/http"
	"net/textproto"
	"time"

	"konnectivity/tunnel"
)

const (
	// maxInterim is more interim responses than any request can use: a 102
	// (Processing) every few seconds until ResponseTimeout, and a few 103.
	maxInterim = 100

	// maxInterimHeader bounds their headers together, like that of one
	// response.
	maxInterimHeader = maxResponseHeader

	// fieldOverhead is what a field costs besides its name and value, so that
	// many short fields cannot get around the bound.
	fieldOverhead = 32
)

// errInterim ends an exchange whose destination keeps announcing a response but
// never sends it.
var errInterim = &tunnel.DialError{Failure: tunnel.FailReset, Reason: "the destination sent too many interim responses"}

// interim counts what a destination has sent before its response.
type interim struct{ responses, bytes int }

// admit counts one more; false means that it is too much.
func (i *interim) admit(header textproto.MIMEHeader) bool {
	i.responses++
	for name, values := range header {
		for _, value := range values {
			i.bytes += len(name) + len(value) + fieldOverhead
		}
	}
	return i.responses <= maxInterim && i.bytes <= maxInterimHeader
}

// inform forwards an interim response (RFC 9110 §15.2); 100 (Continue) goes by goOn. An error
// ends the exchange.
func (x *exchange) inform(code int, header textproto.MIMEHeader) error {
	x.moved()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.interim.admit(header) {
		return errInterim
	}
	if code != http.StatusContinue {
		h := http.Header(header).Clone()
		dropHopByHop(h)
		x.informLocked(code, h)
	}
	return nil
}

// goOn sends 100 (Continue) as the transport first reads content that the client holds back.
// net/http would send it by itself, in the middle of another interim response.
func (x *exchange) goOn() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.informLocked(http.StatusContinue, nil)
}

func (x *exchange) informLocked(code int, header http.Header) {
	if x.answered || x.ctx.Err() != nil || !x.req.ProtoAtLeast(1, 1) {
		return
	}
	// net/http would keep the fields of one interim response for the next.
	clear(x.Header())
	maps.Copy(x.Header(), header)
	defer clear(x.Header())
	// giveUp waits for mu, so the write is bounded here.
	bound := replyTimeout
	if idle := x.server.Forwarder.Idle; idle > 0 {
		bound = min(bound, idle)
	}
	_ = x.rc.SetWriteDeadline(time.Now().Add(bound))
	x.ResponseWriter.WriteHeader(code)
	_ = x.rc.SetWriteDeadline(time.Time{})
}
