package connect

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// proxy runs script as the other end of a TCP connection and returns our end.
func proxy(t testing.TB, script func(c *net.TCPConn)) tunnel.Conn {
	t.Helper()
	near, far := testutil.Pair(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer far.Close()
		script(far)
	}()
	t.Cleanup(func() { near.Close(); <-done })
	return tunnel.Wrap(near)
}

// answer reads the request's headers and sends text.
func answer(text string) func(*net.TCPConn) {
	return func(c *net.TCPConn) { say(c, text) }
}

func say(c net.Conn, text string) {
	readHeaders(c)
	_, _ = io.WriteString(c, text)
}

func readHeaders(c net.Conn) string {
	var got []byte
	for one := make([]byte, 1); !bytes.HasSuffix(got, []byte("\r\n\r\n")); {
		if _, err := c.Read(one); err != nil {
			break
		}
		got = append(got, one...)
	}
	return string(got)
}

func TestHandshakeRequest(t *testing.T) {
	request := make(chan string, 1)
	c := proxy(t, func(c *net.TCPConn) {
		request <- readHeaders(c)
		_, _ = io.WriteString(c, "HTTP/1.1 200 Connection Established\r\n\r\n")
	})
	testutil.Opened(Handshake(testutil.Context(t), c, Request{Address: "[::1]:443", ID: "0123abcd", Span: 0xab, Authorization: "Basic eDp5", UserAgent: "x/1"}))(t)
	want := "CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\nUser-Agent: x/1\r\nProxy-Authorization: Basic eDp5\r\nKonnectivity-Id: 0123abcd\r\n" +
		"Traceparent: 00-" + tunnel.TraceID("0123abcd") + "-00000000000000ab-01\r\n\r\n"
	testutil.Equal(t, <-request, want, "the request")
	bare := testutil.Must(encode(Request{Address: "h:80", ID: "0123abcd"}))(t)
	testutil.Equal(t, bare, "CONNECT h:80 HTTP/1.1\r\nHost: h:80\r\nKonnectivity-Id: 0123abcd\r\n\r\n", "one of what there is")
}

func TestHandshakeKeepsBytesBehindTheResponse(t *testing.T) {
	for _, head := range []string{
		"HTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.0 200 OK\r\nVia: x\r\n\r\n",
		"HTTP/1.1 103 Early Hints\r\nLink: y\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
		"HTTP/1.1 204 Fine\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n",          // RFC 9110 §9.3.6: ignored
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", // no length either
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\nTrailer: Content-Length\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: none\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n",
		"HTTP/1.1 100 Continue\r\nContent-Length: -1\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
	} {
		body := strings.Repeat("SSH-2.0-server speaks first\r\n", 500)
		c := proxy(t, func(c *net.TCPConn) {
			readHeaders(c)
			_, _ = io.WriteString(c, head+body)
			_ = c.CloseWrite()
			_, _ = io.Copy(c, c)
		})
		conn := testutil.Must(Handshake(testutil.Context(t), c, Request{Address: "h:22"}))(t)
		testutil.Equal(t, string(testutil.Must(io.ReadAll(conn))(t)), body, "behind %q", head)
		conn.Close()
	}
}

func TestHandshakeKeepsHalfClose(t *testing.T) {
	c := proxy(t, func(c *net.TCPConn) {
		readHeaders(c)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		got, _ := io.ReadAll(c)
		fmt.Fprintf(c, "got %d", len(got))
	})
	conn := testutil.Opened(Handshake(testutil.Context(t), c, Request{Address: "h:80"}))(t)
	_, _ = conn.Write([]byte("hello"))
	testutil.NoError(t, conn.CloseWrite())
	got, _ := io.ReadAll(conn)
	testutil.Equal(t, string(got), "got 5", "what is read after our FIN")
}

func TestHandshakeRefusals(t *testing.T) {
	for _, c := range []struct {
		text   string
		status int
		body   string
	}{
		{"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/plain\r\n\r\ndial tcp: connection refused\r\n", 502, "dial tcp: connection refused\r\n"},
		{"HTTP/1.1 407 Who\r\nProxy-Authenticate: Basic\r\nContent-Length: 4\r\n\r\npage", 407, "page"},
		{"HTTP/1.1 503 No\r\nContent-Length: 100\r\n\r\ncut", 503, "cut"},
		{"HTTP/1.1 300 Elsewhere\r\nLocation: http://x/\r\nContent-Length: 4\r\n\r\npage", 300, "page"},
		{"HTTP/1.1 500 Big\r\n\r\n" + strings.Repeat("x", 1<<20), 500, strings.Repeat("x", maxBody)},
	} {
		_, err := Handshake(testutil.Context(t), proxy(t, answer(c.text)), Request{Address: "h:80"})
		var status *StatusError
		testutil.Holds(t, errors.As(err, &status) && status.Status == c.status && status.Body == c.body,
			"%.40q: %v", c.text, err)
	}
}

func TestCauseOfSquid(t *testing.T) {
	for header, want := range map[string]string{
		"ERR_DNS_FAIL 0":          "503 (ERR_DNS_FAIL)",
		"ERR_CONNECT_FAIL 111":    "503 (ERR_CONNECT_FAIL 111)",
		"":                        "503",
		"see http://10.0.0.1":     "503",
		"A" + string(rune(0x200)): "503",
		strings.Repeat("A", 65):   "503",
	} {
		_, err := Handshake(testutil.Context(t), proxy(t, answer("HTTP/1.1 503 No\r\nX-Squid-Error: "+header+"\r\nContent-Length: 0\r\n\r\n")), Request{Address: "h:80"})
		var status *StatusError
		testutil.Requires(t, errors.As(err, &status), "%v", err)
		testutil.Equal(t, status.Answer(), want, "of %q", header)
	}
}

func TestHandshakeRefusalWithEndlessBody(t *testing.T) {
	hold := make(chan struct{})
	c := proxy(t, func(c *net.TCPConn) {
		answer("HTTP/1.1 502 Bad Gateway\r\n\r\nno such host")(c)
		<-hold
	})
	defer close(hold)
	_, err := Handshake(testutil.Context(t), c, Request{Address: "h:80"})
	var status *StatusError
	testutil.Holds(t, errors.As(err, &status) && ServerFailure(status) == tunnel.FailNoSuchHost, "%v", err)
}

// A refusal that has come stands, even if the dial is given up while the rest of
// it is read.
func TestHandshakeRefusalOutlivesTheDial(t *testing.T) {
	near, far := net.Pipe() // on which a write returns once its bytes were read
	defer far.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		say(far, "HTTP/1.1 407 Who\r\n\r\n")
		cancel()
	}()
	_, err := Handshake(ctx, tunnel.Wrap(near), Request{Address: "h:80"})
	var status *StatusError
	testutil.Holds(t, errors.As(err, &status) && status.Status == 407, "the refusal: %v", err)
}

func TestHandshakeGarbage(t *testing.T) {
	flood := func(c *net.TCPConn) {
		readHeaders(c)
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n")
		for range 10 << 20 / 1024 {
			if _, err := io.WriteString(c, "X: "+strings.Repeat("y", 1019)+"\r\n"); err != nil {
				return
			}
		}
	}
	interims := answer(strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 100))
	for name, script := range map[string]func(*net.TCPConn){
		"html": answer("<html><body>Welcome</body></html>\n\n"), "tls": answer("\x15\x03\x01\x00\x02\x02\x46\r\n\r\n"), "headers of 10 MB": flood,
		"endless interims": interims, "status 600": answer("HTTP/1.1 600 Hm\r\n\r\n"), "101": answer("HTTP/1.1 101 Switching Protocols\r\n\r\n"),
		"bad header": answer("HTTP/1.1 200 OK\r\nno colon\r\n\r\n"), "bad status": answer("HTTP/1.1 2000 OK\r\n\r\n"),
		"refusal of two lengths": answer("HTTP/1.1 502 No\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd"),
	} {
		_, err := Handshake(testutil.Context(t), proxy(t, script), Request{Address: "h:80"})
		testutil.ErrorIs(t, err, ErrMalformed, "%s", name)
	}
}

// What ends a connection is no answer that makes no sense.
func TestHandshakeTellsOfLostConnections(t *testing.T) {
	unreachable := &net.OpError{Op: "read", Err: syscall.EHOSTUNREACH}
	for _, want := range []error{&tunnel.ResetError{Code: tunnel.CodeShutdown}, unreachable, os.ErrDeadlineExceeded} {
		c := proxy(t, func(*net.TCPConn) {})
		_, err := Handshake(testutil.Context(t), tunnel.With(c, tunnel.Parts{In: tunnel.CopySource(iotest.ErrReader(want))}), Request{Address: "h:80"})
		testutil.Equal(t, err, want, "the error")
	}
}

func TestHandshakeHangUp(t *testing.T) {
	for _, text := range []string{"", "HTTP/1.1 200 OK\r\nVia", "HTTP/1"} {
		_, err := Handshake(testutil.Context(t), proxy(t, answer(text)), Request{Address: "h:80"})
		testutil.Holds(t, errors.Is(err, io.ErrUnexpectedEOF) || text != "" && errors.Is(err, ErrMalformed),
			"%q: %v, want an unexpected EOF", text, err)
	}
}

func TestHandshakeIsBounded(t *testing.T) {
	drip := func(c *net.TCPConn) {
		const text = "HTTP/1.1 200 OK, but very very slowly spoken."
		for i := 0; ; i++ { // without an end, however late the bound passes
			if _, err := c.Write([]byte{text[min(i, len(text)-1)]}); err != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	silent := func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }
	for name, script := range map[string]func(*net.TCPConn){"silent": silent, "drips": drip} {
		c := proxy(t, script)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		defer cancel()
		start := time.Now()
		_, err := Handshake(ctx, c, Request{Address: "h:80"})
		testutil.Holds(t, errors.Is(err, context.DeadlineExceeded) && time.Since(start) <= testutil.Patience,
			"%s: %v after %v", name, err, time.Since(start))
		testutil.Fails(t, testutil.Err(c.Write([]byte("x"))), "%s: a write behind it", name)
	}
}

func TestHandshakeRefusesInjection(t *testing.T) {
	for _, req := range []Request{{Address: "h:80\r\nX: y"}, {Address: "h :80"}, {Address: "h:80", Authorization: "a\r\nb"}} {
		c := proxy(t, func(c *net.TCPConn) {
			got, _ := io.ReadAll(c)
			testutil.Equal(t, string(got), "", "what was sent")
		})
		testutil.Equal(t, tunnel.FailureOf(testutil.Err(Handshake(testutil.Context(t), c, req))), tunnel.FailBadAddress, "%+v", req)
	}
}

func TestServerFailure(t *testing.T) {
	for _, c := range []struct {
		status int
		body   string
		want   tunnel.Failure
	}{
		{502, "dial tcp 10.0.0.1:80: connect: connection refused", tunnel.FailRefused},
		{500, "currently no tunnels available: No agent available", tunnel.FailNoAgent},
		{503, "no agent available", tunnel.FailNoAgent},
		{503, "Too many open files", tunnel.FailExhausted},
		{503, "", tunnel.FailUnavailable},
		{504, "", tunnel.FailTimeout},
		{400, "", tunnel.FailBadAddress},
		{401, "", tunnel.FailAuth},
		{429, "", tunnel.FailBound},
		{500, "", tunnel.FailNoAgent},
		{403, "", tunnel.FailDenied},
		{405, "", tunnel.FailUnavailable},
		{502, "something new", tunnel.FailInternal},
	} {
		got := ServerFailure(&StatusError{Status: c.status, Body: c.body})
		testutil.Equal(t, got, c.want, "%d %q", c.status, c.body)
	}
	// What our own server writes must come back as what it was. No CONNECT resumes a
	// connection.
	for f := range tunnel.Failures() {
		if f == tunnel.FailGone || f == tunnel.FailStale {
			continue
		}
		got := ServerFailure(&StatusError{Status: f.HTTPStatus(), Body: f.String()})
		testutil.Holds(t, got == f || f == tunnel.FailCancelled || f == tunnel.FailAuth, "%v came back as %v", f, got)
	}
}

func TestProxyFailureIgnoresThePage(t *testing.T) {
	for status, want := range map[int]tunnel.Failure{
		407: tunnel.FailAuth, 401: tunnel.FailAuth, 403: tunnel.FailDenied, 504: tunnel.FailTimeout, 502: tunnel.FailHostUnreach, 503: tunnel.FailUnavailable, 404: tunnel.FailUnavailable,
	} {
		testutil.Equal(t, ProxyFailure(&StatusError{Status: status, Body: "connection refused"}), want, "%d", status)
	}
}

// FuzzResponse feeds any answer to the parser: it must end, hand back exactly
// the bytes behind a good response, and hold to its bounds.
func FuzzResponse(f *testing.F) {
	for _, s := range []string{
		"HTTP/1.1 200 Connection Established\r\n\r\nrest", "HTTP/1.1 502 Bad Gateway\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 100 C\r\n\r\nHTTP/1.1 200 K\r\n\r\n",
		"HTTP/1.0 407 x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", "HTTP/1.1 200", "HTTP/1.1 200 K\r\nContent-Length: x\r\n\r\nrest", "\x00\xff", "HTTP/1.1 200 OK\r\nX:" + strings.Repeat("y", 2000) + "\r\n\r\nz",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		near, far := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			readHeaders(far)
			_, _ = far.Write(data)
			_ = far.Close()
		}()
		conn, err := Handshake(t.Context(), tunnel.Wrap(near), Request{Address: "h:80"})
		if err == nil {
			rest, _ := io.ReadAll(conn)
			testutil.Equal(t, bytes.HasSuffix(data, rest), true, "%q is the end of %q", rest, data)
			conn.Close()
		} else if conn != nil {
			t.Error("an error and a connection")
		}
		_ = near.Close()
		<-done
	})
}
