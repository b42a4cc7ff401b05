// Package connect is the client's half of HTTP CONNECT (RFC 9110 §9.3.6): it
// asks the proxy at the other end of a connection for a tunnel, within bounds.
//
// It owns a connection from Handshake on. Sidecars reach old servers and
// customers' proxies by it, and agents proxies of theirs.
package connect

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/textproto"
	"strconv"
	"strings"
	"time"

	"konnectivity/tunnel"
)

const (
	// maxHeader bounds the response's status line and headers, interim
	// responses included. Real proxies send a few hundred bytes, a Kerberos
	// challenge up to some 12 KiB.
	maxHeader = 64 << 10

	// maxBody is how much of a refusal's body is read: it is searched for one
	// sentence, and error pages put theirs in front.
	maxBody = 4 << 10

	// maxCause bounds what Squid calls a cause: ERR_SECURE_CONNECT_FAIL 104.
	maxCause = 64

	// bodyTime bounds the wait for a refusal's body, which may never end.
	bodyTime = time.Second

	// maxInterim bounds 1xx responses before the final one.
	maxInterim = 8

	// readAhead is the parser's buffer: larger than a usual response, small
	// enough not to matter for the connection's life.
	readAhead = 1 << 10

	// idHeader carries the connection's id to the next hop; a proxy that does
	// not know it ignores it.
	idHeader = "Konnectivity-Id"
)

// Request is what to ask for.
type Request struct {
	Address       string // host:port of the destination
	ID            string // of the connection, for the next hop; "" sends none
	Span          uint64 // of this dial, for a hop of ours; 0 sends none
	Authorization string // value of Proxy-Authorization; "" sends none
	UserAgent     string // "" sends none
}

// StatusError is a proxy's refusal.
type StatusError struct {
	Status int    // 300 to 599
	Squid  string // what Squid calls the cause, "ERR_CONNECT_FAIL 111"; "" for other proxies
	Body   string // the beginning of its body, as it came: not fit for clients
}

// Answer is the status, and the cause if the proxy gave one: "503 (ERR_DNS_FAIL)".
func (e *StatusError) Answer() string {
	if e.Squid == "" {
		return strconv.Itoa(e.Status)
	}
	return fmt.Sprintf("%d (%s)", e.Status, e.Squid)
}

func (e *StatusError) Error() string {
	s := fmt.Sprintf("proxy answered %d %s", e.Status, http.StatusText(e.Status))
	if line := firstLine(e.Body); line != "" {
		s += ": " + line
	}
	return s
}

// ErrMalformed is in the chain of errors about an answer that is not HTTP, or
// too large to be an honest one.
var ErrMalformed = errors.New("proxy's answer is not a valid HTTP response")

// Handshake sends the request on c and returns the tunnel. Bytes that came
// right behind the response are the tunnel's first. It blocks until the proxy
// has answered or ctx ends. It owns c from the call on: on failure c is closed
// and the error is a *StatusError, wraps ErrMalformed, is ctx's cause, or is
// what reading or writing said (io.ErrUnexpectedEOF for a proxy that hung up).
func Handshake(ctx context.Context, c tunnel.Conn, req Request) (tunnel.Conn, error) {
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	br := bufio.NewReaderSize(nil, readAhead)
	err := exchange(c, br, req)
	var refusal *StatusError                  // stands, even if ctx ended while its body was read
	if !stop() && !errors.As(err, &refusal) { // the deadline is, or will be, in the past
		_ = c.Reset(ctx.Err())
		return nil, context.Cause(ctx)
	}
	if err != nil {
		_ = c.Close()
		return nil, err
	}
	_ = c.SetDeadline(time.Time{})
	ahead, _ := br.Peek(br.Buffered())
	return tunnel.Unread(c, ahead), nil
}

func exchange(c tunnel.Conn, br *bufio.Reader, req Request) error {
	text, err := encode(req)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return fmt.Errorf("send CONNECT: %w", err)
	}
	limited := &io.LimitedReader{R: c, N: maxHeader}
	br.Reset(limited)
	res, err := readFinal(br)
	if err != nil {
		return readError(limited, err)
	}
	if res.StatusCode/100 == 2 {
		return nil // any 2xx opens the tunnel; its framing headers mean nothing
	}
	_ = c.SetReadDeadline(time.Now().Add(bodyTime))
	body, _ := io.ReadAll(io.LimitReader(res.Body, maxBody))
	return &StatusError{Status: res.StatusCode, Squid: squid(res.Header.Get("X-Squid-Error")), Body: string(body)}
}

// squid is cause without an errno of 0, if it has the form of Squid's, which is fit for clients.
func squid(cause string) string {
	odd := func(r rune) bool { return r != '_' && r != ' ' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') }
	if len(cause) > maxCause || strings.ContainsFunc(cause, odd) {
		return ""
	}
	return strings.TrimSuffix(cause, " 0")
}

// encode writes the request. Everything in it that came from outside is checked
// for characters that would start another header.
func encode(req Request) (string, error) {
	if strings.ContainsAny(req.Address+req.ID, "\r\n\x00 ") || strings.ContainsAny(req.Authorization+req.UserAgent, "\r\n\x00") {
		return "", &tunnel.DialError{Failure: tunnel.FailBadAddress, Address: req.Address}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n", req.Address, req.Address)
	trace := ""
	if req.Span != 0 {
		trace = tunnel.FormatTraceParent(req.ID, req.Span)
	}
	for _, h := range [][2]string{{"User-Agent", req.UserAgent}, {"Proxy-Authorization", req.Authorization}, {idHeader, req.ID}, {"Traceparent", trace}} {
		if h[1] != "" {
			fmt.Fprintf(&b, "%s: %s\r\n", h[0], h[1])
		}
	}
	b.WriteString("\r\n")
	return b.String(), nil
}

// readFinal reads responses until one that is not interim.
func readFinal(br *bufio.Reader) (*http.Response, error) {
	for range maxInterim {
		res, err := readResponse(br)
		if err != nil {
			return nil, err
		}
		switch {
		case res.StatusCode > 599:
			return nil, fmt.Errorf("%w: status %d", ErrMalformed, res.StatusCode)
		case res.StatusCode >= 200:
			return res, nil
		case res.StatusCode == http.StatusSwitchingProtocols:
			return nil, fmt.Errorf("%w: it switches protocols", ErrMalformed)
		}
	}
	return nil, fmt.Errorf("%w: too many interim responses", ErrMalformed)
}

// readResponse is http.ReadResponse without regard to what the fields of a 2xx or 1xx say of
// a body: there is none (RFC 9110 §9.3.6, RFC 9112 §6.3). Proxies send wrong ones.
func readResponse(br *bufio.Reader) (*http.Response, error) {
	text := textproto.NewReader(br)
	line, err := text.ReadLine()
	if err != nil {
		return nil, err
	}
	line += "\r\n"
	res, err := parseResponse(strings.NewReader(line + "\r\n"))
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 { // nothing of a tunnel follows, so it may be read ahead
		return parseResponse(io.MultiReader(strings.NewReader(line), br))
	}
	_, err = text.ReadMIMEHeader()
	return res, err
}

func parseResponse(r io.Reader) (*http.Response, error) {
	return http.ReadResponse(bufio.NewReaderSize(r, readAhead), &http.Request{Method: http.MethodConnect})
}

// readError distinguishes a connection that failed from an answer that makes no
// sense.
func readError(limited *io.LimitedReader, err error) error {
	var timeout interface{ Timeout() bool }
	switch {
	case limited.N <= 0:
		return fmt.Errorf("%w: more than %d bytes of headers", ErrMalformed, maxHeader)
	case errors.Is(err, ErrMalformed):
		return err
	case errors.Is(err, io.EOF):
		return io.ErrUnexpectedEOF
	case errors.As(err, &timeout) || tunnel.CodeOf(err) != tunnel.CodeUnknown:
		return err
	default:
		return fmt.Errorf("%w: %w", ErrMalformed, err)
	}
}

// firstLine is the first line of text, cut to what fits a log line.
func firstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(text), "\n")
	line = tunnel.OneLine(line)
	return strings.TrimSpace(line[:min(len(line), 200)])
}
