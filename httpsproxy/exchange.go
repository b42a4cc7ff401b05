package httpsproxy

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"konnectivity/internal/front"
	"konnectivity/tunnel"
)

// longAgo is a deadline that ends a read at once.
var longAgo = time.Unix(1, 0)

// stallLook is how often to check for a client's reset while its content waits for the
// destination: as often as a relay checks.
const stallLook = 2 * time.Second

// errIdle ends an exchange without progress for too long.
var errIdle = &tunnel.DialError{Failure: tunnel.FailTimeout, Reason: "nothing was sent or received for too long"}

// exchange is one plain request and its response: the ResponseWriter that
// goproxy answers to, and the connection to the destination. It belongs to the
// client's goroutine, except for what mu guards, the request's content (read by
// the transport) and inform.
type exchange struct {
	http.ResponseWriter
	server *Server
	client *client
	rc     *http.ResponseController
	req    *http.Request // as goproxy sees it
	ctx    context.Context
	cancel context.CancelCauseFunc
	idle   *time.Timer // nil if silence is not bounded

	rec      *record
	content  *content    // the request's; nil if it has none
	conn     *dialed     // that it uses; nil: none yet
	broken   error       // why the response's content is not whole, or did not all reach the client
	upgraded *upgrade    // what a 101 response led to
	used     atomic.Bool // it has had a connection, and observers know it as open

	mu       sync.Mutex
	due      time.Time   // when idle fires
	looking  *time.Timer // at the client; nil without content
	interim  interim     // responses before the final one
	partial  partial     // header of a response
	answered bool        // no more interim responses
	over     bool        // end was called
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

func (s *Server) newExchange(c *client, w http.ResponseWriter, r *http.Request) *exchange {
	x := &exchange{ResponseWriter: w, server: s, client: c, rc: http.NewResponseController(w), rec: newRecord(c, kindForward, r, "")}
	if asksUpgrade(r) != "" {
		x.rec.flow.Front = kindUpgrade // from the start
	}
	// A destination may answer before it has the whole request. net/http would
	// hold that answer back until it has read the rest.
	_ = x.rc.EnableFullDuplex()
	x.ctx, x.cancel = context.WithCancelCause(r.Context())
	x.req = r.WithContext(context.WithValue(x.ctx, exchangeKey{}, x))
	if r.ContentLength != 0 {
		x.content = &content{ReadCloser: r.Body, exchange: x, origin: r, held: r.Header.Get("Expect") != ""}
		x.req.Body = x.content
		x.lookLater()
	}
	if bound := s.Forwarder.Idle; bound > 0 {
		x.mu.Lock()
		defer x.mu.Unlock()
		x.idle = time.AfterFunc(bound, x.giveUp)
		x.await()
	}
	return x
}

// transport returns what sends the request. A server closes idle connections, and a request
// may cross that on its way. http.Transport then sends it again, but only if it has no content
// and a safe method (RFC 9110 §9.2.2). The client of any other request would be told that the
// destination failed, though it works; such requests use connections that servers do not close
// yet.
func (x *exchange) transport() *http.Transport {
	switch x.req.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		if x.content == nil {
			return x.server.transport
		}
	}
	return x.server.brief
}

// check returns the refusal of a request that must not be forwarded, or nil.
func (x *exchange) check() *http.Response {
	destination, refused := forwardTarget(x.client, x.req)
	x.rec.flow.Address = destination
	switch {
	case refused != nil:
	case x.server.opts.Self != nil && x.server.opts.Self(destination):
		refused = selfRefusal
	case x.server.looped(x.req.Header):
		refused = loopRefusal
	case !spendForward(x.req):
		refused = &refusal{http.StatusNotImplemented, "Max-Forwards is 0, and this proxy does not answer such a request itself.", outcomeInvalid}
	default:
		return nil
	}
	return x.refuse(refused)
}

func (x *exchange) refuse(r *refusal) *http.Response {
	x.rec.refuse(r)
	return r.response(x.req)
}

// roundTrip sends the request. Failures become responses, so that goproxy
// writes none of its own.
func (x *exchange) roundTrip(r *http.Request) (*http.Response, error) {
	var up upgrade
	out := x.server.outgoing(r)
	x.rewriteTarget(out)
	if x.content != nil {
		out.Body = x.content
		// Trailers that were not announced arrive in a map of their own.
		out.Trailer = maps.Clone(r.Trailer)
		if out.Trailer == nil {
			out.Trailer = make(http.Header)
		}
		cleanTrailer(out.Trailer, r.Header["Connection"])
		x.content.trailer = out.Trailer
	}
	resp, err := x.transport().RoundTrip(out.WithContext(httptrace.WithClientTrace(out.Context(), &httptrace.ClientTrace{
		GotConn:        func(info httptrace.GotConnInfo) { up.conn = info.Conn; x.opened(info.Conn) },
		Got1xxResponse: x.inform,
	})))
	x.mu.Lock()
	x.answered = true
	room := x.weighed()
	x.mu.Unlock()
	if errors.Is(err, context.Canceled) && !x.content.whole() {
		err = &clientError{err} // the client left in the middle of its content
	}
	if err != nil {
		x.rec.err = err
		if failed, ok := errors.AsType[*failedDial](err); ok && !x.used.Load() {
			x.rec.flow.TakeResult(failed.flow)
		}
		if !room { // net/textproto may blame the line that it has half of
			return x.refuse(headerRefusal), nil
		}
		if x.server.proxied(out) {
			return x.refuse(proxyRefusalFor(err)), nil
		}
		return x.refuse(refusalFor(err)), nil
	}
	return x.receive(resp, out, up), nil
}

// receive prepares the response for the client.
func (x *exchange) receive(resp *http.Response, out *http.Request, up upgrade) *http.Response {
	var bad *refusal
	switch switched := resp.StatusCode == http.StatusSwitchingProtocols; {
	case len(resp.Header) > maxFields:
		bad = badAnswer("The destination's answer has too many header fields.")
	case !x.client.keep(headerMemory(len(resp.Status), resp.Header)):
		bad = headerRefusal
	case switched && out.Header["Upgrade"] != nil:
		up.resp = resp
		x.upgraded = &up
		return &http.Response{StatusCode: resp.StatusCode, Header: make(http.Header), Body: http.NoBody}
	case switched:
		bad = badAnswer("The destination switched protocols without being asked.")
	case resp.StatusCode < 100: // not a valid status, and net/http will not write it
		bad = badAnswer("The destination answered with an invalid status.")
	case resp.StatusCode == http.StatusProxyAuthRequired && x.server.proxied(out):
		bad = proxyAuthRefusal // the client's own credentials cannot help
	case resp.StatusCode == http.StatusProxyAuthRequired:
		bad = badAnswer("The destination is a proxy, and wants authentication of this one.")
	}
	if bad != nil {
		_ = resp.Body.Close()
		return x.refuse(bad)
	}
	options := resp.Header["Connection"]
	x.server.cleanResponse(resp)
	cleanTrailer(resp.Trailer, options)
	resp.Body = &responseContent{ReadCloser: resp.Body, exchange: x, origin: resp, options: options}
	return resp
}

// rewriteTarget sets the request-target for the next hop.
//
// OPTIONS for a whole server becomes "OPTIONS *" again for the server itself (RFC
// 9112 §3.2.4); a next proxy gets the absolute form, as it came: with a "/" behind
// it, which net/url adds, it would ask for something else (RFC 9110 §4.2.3).
//
// A path stays as the client wrote it (RFC 9110 §7.7). net/url rewrites one with a
// character that should be escaped, and drops the escapes in it: "/a%2Fb|c" would
// become "/a/b%7Cc", the name of something else.
func (x *exchange) rewriteTarget(out *http.Request) {
	_, target, _ := strings.Cut(x.req.RequestURI, "://")
	target, _, _ = strings.Cut(target, "?")
	_, path, found := strings.Cut(target, "/")
	path = "/" + path
	u := *out.URL
	server := out.Method == http.MethodOptions && u.Path == "" && u.RawQuery == "" && !u.ForceQuery
	switch {
	case server && x.server.proxied(out):
		u.Opaque = "//" + u.Host
	case server:
		u.Opaque = "*"
	case !found || path == u.EscapedPath() || strings.Contains(path, "#"):
		return
	case strings.HasPrefix(path, "//") || x.server.proxied(out):
		u.Opaque = "//" + u.Host + path // the absolute form, which every server takes
	default:
		u.Opaque = path
	}
	out.URL = &u
}

// proxied reports whether r goes through a customer's proxy.
func (s *Server) proxied(r *http.Request) bool {
	if s.transport.Proxy == nil {
		return false
	}
	u, err := s.transport.Proxy(r)
	return u != nil || err != nil
}

// WriteHeader sends the response's header at once, since the content may take
// long to arrive. That also keeps net/http from guessing a Content-Type.
func (x *exchange) WriteHeader(code int) {
	if x.upgraded != nil {
		return
	}
	x.rec.status = code
	if x.client.leaving() || x.last() {
		x.Header().Set("Connection", "close")
	}
	x.ResponseWriter.WriteHeader(code)
	_ = x.rc.Flush()
}

// last reports whether the connection must end with this request, so that
// no content is taken for a request:
//   - if its content is not whole, the rest of it would be;
//   - if it was not, and no more of it is read;
//   - if its content came in chunks, its length may have been given as well, and
//     another hop may have gone by that (RFC 9112 §6.1); net/http does not say;
//   - in HTTP/1.0, net/http ignores Transfer-Encoding and takes chunks for requests.
//     A proxy must not keep such a connection anyway (§9.3).
func (x *exchange) last() bool {
	return !x.content.whole() || x.client.deaf.Load() || len(x.req.TransferEncoding) > 0 || !x.req.ProtoAtLeast(1, 1)
}

// Write sends p at once.
func (x *exchange) Write(p []byte) (int, error) {
	x.rec.flow.Hold(false, true)
	n, err := x.ResponseWriter.Write(p)
	if err == nil {
		err = x.rc.Flush()
	}
	x.rec.flow.Hold(false, false)
	x.rec.flow.Carry(false, n)
	x.client.sent.count.Add(int64(n))
	if err != nil && x.rec.outcome == front.OutcomeOK { // of a refusal, why it was refused tells more
		x.broken = x.why(err)
	}
	return n, err
}

// why returns the reason for which the exchange was ended, or err if that is not
// known.
func (x *exchange) why(err error) error {
	if cause := context.Cause(x.ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// Unwrap lets http.ResponseController reach net/http's writer.
func (x *exchange) Unwrap() http.ResponseWriter { return x.ResponseWriter }

// moved records that the exchange makes progress.
func (x *exchange) moved() {
	if x.idle == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over {
		x.await()
	}
}

// await gives the exchange its time anew. mu is held.
func (x *exchange) await() {
	bound := x.server.Forwarder.Idle
	x.due = time.Now().Add(bound)
	x.idle.Reset(bound)
}

// giveUp ends an exchange that makes no progress.
func (x *exchange) giveUp() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.over { // a deadline would hit the connection's next request
		return
	}
	switch late := time.Since(x.due); {
	case late < 0: // it has moved as this was called
		return
	case late > tunnel.StopTime: // this process stood still: what it waits for may have come
		x.await()
		return
	}
	x.cancel(errIdle)
	bound := longAgo
	if !x.answered { // the client is still to be told
		bound = time.Now().Add(replyTimeout)
	}
	_ = x.rc.SetWriteDeadline(bound)
}

// look ends an exchange whose client has reset its connection while content waits for the
// destination. Nobody reads from the client then, and the kernel reports a reset only to a
// reader.
func (x *exchange) look() {
	if waits, _ := x.rec.flow.Held(); waits {
		if err := x.client.conn.Failed(); err != nil {
			x.cancel(&clientError{err})
			return
		}
	}
	x.lookLater()
}

func (x *exchange) lookLater() {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.over {
		x.looking = time.AfterFunc(stallLook, x.look)
	}
}

// finish is called once goproxy is done with the exchange.
func (x *exchange) finish() {
	if x.upgraded != nil {
		x.switchProtocols()
		return
	}
	x.client.unread = x.last()
	if x.broken != nil {
		x.rec.outcome, x.rec.err = outcomeBroken, x.broken
	}
	x.server.count(x.rec)
	x.server.log(x.rec)
	if x.broken == nil {
		return
	}
	if !x.req.ProtoAtLeast(1, 1) && x.Header().Get("Content-Length") == "" {
		// Only a reset tells this client that the content is not whole.
		_ = x.client.conn.Reset(x.broken)
	}
	panic(http.ErrAbortHandler) // net/http would otherwise end it normally
}

// finished reports whether end was called.
func (x *exchange) finished() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.over
}

// end stops everything that works on the exchange.
func (x *exchange) end() {
	x.mu.Lock()
	x.over = true
	if x.looking != nil {
		x.looking.Stop()
	}
	x.mu.Unlock()
	x.cancel(nil)
	if x.conn != nil {
		x.conn.exchange.CompareAndSwap(x, nil) // the next one may have it by now
	}
	if x.upgraded == nil { // else it goes on
		x.closed(x.rec.err)
	}
	if x.idle != nil {
		x.idle.Stop()
	}
	if x.upgraded == nil && !x.content.whole() {
		x.client.stopReading() // the transport may still read it
	}
}
