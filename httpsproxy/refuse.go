package httpsproxy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"konnectivity/tunnel"
)

// refusal is what a client gets instead of what it asked for.
type refusal struct {
	status  int
	text    string // one sentence that leaks nothing internal
	outcome string // a metric's label
}

func (r *refusal) Error() string { return strings.TrimSuffix(r.text, ".") }

func invalid(text string) *refusal { return &refusal{http.StatusBadRequest, text, outcomeInvalid} }

func badAnswer(text string) *refusal { return &refusal{http.StatusBadGateway, text, outcomeBroken} }

var (
	loopRefusal = &refusal{http.StatusLoopDetected, "The request is for this proxy itself and would loop.", outcomeLoop}

	// selfRefusal is what CONNECT hears, too.
	selfRefusal = &refusal{http.StatusForbidden, "The destination is this proxy itself.", tunnel.FailDenied.Label()}

	fullRefusal = &refusal{http.StatusServiceUnavailable,
		"This proxy serves as many connections as its descriptors (ulimit -n) allow.", tunnel.FailExhausted.Label()}

	headerRefusal = &refusal{http.StatusServiceUnavailable,
		"This proxy has no memory left for a header as long as that of the request or of its answer; try again later.", tunnel.FailExhausted.Label()}

	fieldsRefusal = &refusal{http.StatusRequestHeaderFieldsTooLarge, "The request has too many header fields.", outcomeInvalid}

	// foreignRefusal makes clients of other protocols fail at once; curl and Go
	// name the cause.
	foreignRefusal = invalid("This port speaks HTTP: give clients a proxy URL that begins with http://.")

	proxyAuthRefusal = &refusal{http.StatusBadGateway,
		"The customer proxy wants authentication: " + tunnel.AuthAdvice + ".", tunnel.FailAuth.Label()}
)

// refusalFor returns the status and the sentence for a failed request, by the
// type of the error.
func refusalFor(err error) *refusal {
	var dial *tunnel.DialError
	var broken *clientError
	var timeout net.Error
	switch {
	case errors.As(err, &dial):
		return &refusal{dial.Failure.HTTPStatus(), sentence(dial.Text()), dial.Failure.Label()}
	case errors.As(err, &broken):
		return &refusal{http.StatusBadRequest, "The request's content is incomplete or malformed.", outcomeBroken}
	case errors.Is(err, context.Canceled):
		return &refusal{http.StatusServiceUnavailable, "The request was cancelled.", tunnel.FailCancelled.Label()}
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, os.ErrDeadlineExceeded):
		return &refusal{http.StatusGatewayTimeout, "The destination did not answer in time.", tunnel.FailTimeout.Label()}
	default:
		return &refusal{http.StatusBadGateway, "The destination closed the connection or did not answer in HTTP.", outcomeBroken}
	}
}

// proxyRefusalFor is refusalFor for a request through a customer's proxy, so
// that its text blames the proxy and not the destination. Statuses are the same as
// for CONNECT through such a proxy.
func proxyRefusalFor(err error) *refusal {
	r := *refusalFor(err)
	var dial *tunnel.DialError
	switch {
	case errors.As(err, &dial):
		r.text = sentence("customer proxy: " + dial.Text())
	case r.status == http.StatusGatewayTimeout:
		r.text = "The customer proxy did not answer in time."
	case r.status == http.StatusBadGateway:
		r.status = http.StatusServiceUnavailable
		r.text = "The customer proxy hung up or does not speak HTTP."
		if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
			r.text = "The customer proxy shows a certificate that is not trusted."
		}
	}
	return &r
}

// sentence starts text with a capital and ends it with a full stop.
func sentence(text string) string {
	if text == "" {
		return ""
	}
	return strings.ToUpper(text[:1]) + strings.TrimSuffix(text[1:], ".") + "."
}

// turnAway refuses a request whatever its destination, and ends its connection.
func (s *Server) turnAway(c *client, w http.ResponseWriter, r *http.Request, why *refusal) {
	rec := newRecord(c, kindForward, r, r.Host)
	if r.Method == http.MethodConnect {
		rec.kind = kindConnect
	}
	rec.status = why.status
	rec.refuse(why)
	s.count(rec)
	s.log(rec)
	w.Header().Set("Connection", "close")
	c.unread = true // content, or other requests
	// net/http reads content behind the answer, and would wait for it without end.
	_ = c.conn.SetReadDeadline(time.Now().Add(s.opts.handshakeTimeout))
	copyResponse(w, why.response(r))
}

// copyResponse sends a response that is in memory.
func copyResponse(w http.ResponseWriter, resp *http.Response) {
	maps.Copy(w.Header(), resp.Header)
	w.WriteHeader(resp.StatusCode)
	_, _ = io.Copy(w, resp.Body) // which net/http omits for HEAD
}

// message returns the refusal as it is sent on a connection without net/http. Its sentence is in
// the status line, too: of a CONNECT that was refused, most clients show that line or nothing.
func (r *refusal) message(proto string) []byte {
	reason := tunnel.OneLine(r.Error())
	return fmt.Appendf(nil, "%s %d %s\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n",
		proto, r.status, reason, len(r.text)+1, r.text)
}

// clientError marks an error as the client's: the content of its request could
// not be read.
type clientError struct{ err error }

func (e *clientError) Error() string { return fmt.Sprintf("read the request's content: %v", e.err) }
func (e *clientError) Unwrap() error { return e.err }
