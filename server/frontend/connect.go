package frontend

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/tunnel"
)

// established is exactly what clients of upstream wait for: some compare it, and
// kube-apiserver gives up if anything follows it in the same read
// (apiserver/pkg/server/egressselector, tunnelHTTPConnect).
const established = "HTTP/1.1 200 Connection Established\r\n\r\n"

// ConnectMetrics counts CONNECT requests. Its methods must not block.
type ConnectMetrics interface {
	HTTPConnection(delta int)
	FrontendWrite(took time.Duration)
}

// ServingHeader is in the answer to requests other than CONNECT, so a client
// can ask without dialing anything: "yes" if an agent serves, else "no" and,
// after a semicolon, why.
const ServingHeader = "Konnectivity-Serving"

// Connect serves HTTP CONNECT. admit returns what serves the client with this token ("": it
// showed none), or why none does. serving returns why no agent serves, or nil if one does.
func Connect(admit func(token string) (tunnel.Handler, error), m ConnectMetrics, serving func() error) Handler {
	return func(ctx context.Context, c *Conn) {
		asked, err := readConnect(c.Reader)
		var bad *badRequest
		if err != nil && !(errors.As(err, &bad) && bad.status == http.StatusMethodNotAllowed) {
			c.refuse(err, serving)
			return
		}
		f, stranger := admit(asked.token)
		switch {
		case stranger != nil:
			c.Deny()
			c.answerError(http.StatusProxyAuthRequired, stranger.Error(), "Proxy-Authenticate: Bearer")
		case err != nil:
			c.refuse(err, serving)
		case c.Begin():
			m.HTTPConnection(1)
			defer m.HTTPConnection(-1)
			c.connect(ctx, f, m, asked)
		}
	}
}

// refuse answers an invalid request.
func (c *Conn) refuse(err error, serving func() error) {
	var bad *badRequest
	if c.limit.N <= 0 && errors.Is(err, io.EOF) {
		err = &badRequest{http.StatusBadRequest, fmt.Sprintf("the header is longer than %d bytes", maxHeader)}
	}
	c.reject(err)
	if !errors.As(err, &bad) {
		return
	}
	if bad.status == http.StatusMethodNotAllowed {
		c.answerError(bad.status, bad.reason, "Allow: CONNECT", ServingHeader+": "+servingValue(serving()))
		return
	}
	c.answerError(bad.status, bad.reason)
}

func servingValue(err error) string {
	if err == nil {
		return "yes"
	}
	return "no; " + tunnel.OneLine(err.Error())
}

// speaksHTTP reports whether a TLS handshake failed since the peer sent a request instead. Conn is
// nil where TLS has answered something before.
func speaksHTTP(err error) bool {
	notTLS, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok && notTLS.Conn != nil && slices.Contains([]string{"GET /", "HEAD ", "POST ", "PUT /", "OPTIO", "CONNE"}, string(notTLS.RecordHeader[:]))
}

var errHTTP = errors.New("an HTTP request at a port that wants TLS")

// refuseHTTP answers HTTP at a port with TLS in the words of net/http, which many know.
func refuseHTTP(_ context.Context, c *Conn) {
	c.reject(errHTTP)
	c.answerError(http.StatusBadRequest, "Client sent an HTTP request to an HTTPS server.")
}

// connect dials what a CONNECT request asks for, answers and relays.
func (c *Conn) connect(ctx context.Context, f tunnel.Handler, m ConnectMetrics, asked asked) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	near := timed(c.Conn, m.FrontendWrite)
	head, _ := c.Reader.Peek(c.Reader.Buffered())
	ahead := admission.NewLookahead(near, head)
	c.Reader = nil // 4 KiB that the connection need not hold any more
	defer ahead.Drop()
	stop := sync.OnceValue(admission.NewWatch(ahead, cancel).Stop)
	defer stop() // for a Handler that never requests the answer
	flow := &tunnel.Flow{
		Request: tunnel.Request{ID: asked.id, Front: "connect", Network: "tcp", Address: asked.authority, Source: c.RemoteAddr()},
		Span:    tunnel.Span{Parent: asked.span},
	}
	_ = tunnel.Forward(ctx, f, flow, func(far tunnel.Conn, err error) (tunnel.Conn, error) {
		switch gone := stop(); {
		case gone != nil:
			return nil, gone
		case err != nil:
			c.answerDial(err)
			return nil, err
		}
		if _, err := io.WriteString(near, established); err != nil {
			return nil, err
		}
		return ahead.Rest(), nil
	})
}

// answerDial tells the client why its destination was not reached.
func (c *Conn) answerDial(err error) {
	dial := tunnel.AsDialError("", err)
	text := dial.Text()
	told := dial.Failure != tunnel.FailInternal && tunnel.GuessFailure(text) == dial.Failure
	if words := dial.Failure.String(); !told && !strings.Contains(text, words) {
		text = words + ": " + text // clients look for the usual phrases
	}
	c.answerError(dial.Failure.HTTPStatus(), text)
}

// answerError sends an error response in a way that the client can read it. Its text is in the
// status line, too: kube-apiserver logs that line, and drops the content
// (apiserver/pkg/server/egressselector, tunnelHTTPConnect).
func (c *Conn) answerError(status int, text string, fields ...string) {
	text = tunnel.OneLine(text)
	more := ""
	for _, field := range fields {
		more += field + "\r\n"
	}
	admission.HangUp(c.Conn, fmt.Appendf(nil, "HTTP/1.1 %d %s\r\n%sContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n",
		status, text, more, len(text)+1, text))
}
