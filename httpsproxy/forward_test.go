package httpsproxy

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func hello(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }

func fixedProxy(u string) func(*http.Request) (*url.URL, error) {
	parsed, err := url.Parse(u)
	return func(*http.Request) (*url.URL, error) { return parsed, err }
}

// rawOrigin answers every request with response and hands out its head.
func rawOrigin(t *testing.T, response string) (addr string, heads chan []string) {
	heads = make(chan []string, 10)
	addr = testutil.Serve(t, func(c *net.TCPConn) {
		w := newWire(t, c)
		for {
			first, err := w.r.Peek(1)
			if err != nil || len(first) == 0 {
				return
			}
			status, header := w.head()
			heads <- append([]string{status}, header...)
			_, _ = io.WriteString(c, response)
		}
	})
	return addr, heads
}

func TestRequestHeaders(t *testing.T) {
	origin, heads := rawOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := startProxy(t, nil)
	via := "Via: 1.1 " + p.pseudonym
	for name, tc := range map[string]struct {
		request string // without the Host that is first
		want    []string
	}{
		"end-to-end headers pass, nothing is added": {
			"Accept: a\r\nAccept-Encoding: br\r\nUser-Agent: me\r\nAuthorization: mine\r\nX-Two: 1\r\nX-Two: 2\r\nCookie: c\r\nForwarded: for=x\r\n",
			[]string{"Accept: a", "Accept-Encoding: br", "User-Agent: me", "Authorization: mine", "X-Two: 1", "X-Two: 2", "Cookie: c", "Forwarded: for=x", via},
		},
		"no agent is made up": {"", []string{via}},
		"hop-by-hop headers end here": {
			"Connection: close, X-Mine , keep-alive\r\nConnection: x-other\r\nX-Mine: 1\r\nX-Other: 1\r\nKeep-Alive: 5\r\nTE: gzip\r\n" +
				"Proxy-Authorization: Basic c2VjcmV0\r\nProxy-Connection: keep-alive\r\nProxy-Authenticate: x\r\nProxy-Foo: x\r\nUpgrade: websocket\r\nX-Stays: 1\r\n",
			[]string{"X-Stays: 1", via},
		},
		"trailers may be asked for": {
			"TE: trailers, deflate;q=0.5\r\nConnection: TE\r\n", []string{"Te: trailers", "Connection: TE", via},
		},
		"an upgrade passes alone": {
			"Connection: keep-alive, Upgrade, X-Mine\r\nUpgrade: websocket\r\nX-Mine: 1\r\n",
			[]string{"Connection: Upgrade", "Upgrade: websocket", via},
		},
		"no upgrade to HTTP/2": {
			"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n", []string{via},
		},
		"Via is appended": {"Via: 1.0 fred\r\n", []string{"Via: 1.0 fred", via}},
	} {
		t.Run(name, func(t *testing.T) {
			w := dialWire(t, p.addr)
			w.send("GET http://%s/p%%2fq?a=b;c&%%zz HTTP/1.1\r\nHost: other.test\r\n%s\r\n", origin, tc.request)
			w.answered(200, "status")
			head := testutil.Receive(t, "the request", heads)
			testutil.Equal(t, head[0], "GET /p%2fq?a=b;c&%zz HTTP/1.1", "request line")
			sameLines(t, head[1:], append(tc.want, "Host: "+origin))
		})
	}
}

func sameLines(t *testing.T, got, want []string) {
	t.Helper()
	missing := map[string]int{}
	for _, l := range want {
		missing[l]++
	}
	for _, l := range got {
		if missing[l]--; missing[l] < 0 {
			t.Errorf("line %q is too much", l)
		}
	}
	for l, n := range missing {
		testutil.Holds(t, n <= 0, "line %q is missing", l)
	}
}

func TestResponseHeaders(t *testing.T) {
	origin, _ := rawOrigin(t, "HTTP/1.1 299 Rather Good\r\nContent-Length: 3\r\nDate: Thu, 01 Jan 1970 00:00:00 GMT\r\n"+
		"Connection: X-Mine, keep-alive\r\nX-Mine: 1\r\nKeep-Alive: timeout=5\r\nProxy-Authenticate: Basic\r\nProxy-Connection: x\r\n"+
		"Upgrade: h2c\r\nX-Stays: 1\r\nSet-Cookie: a\r\nSet-Cookie: b\r\nVia: 1.1 fred\r\n\r\n<p>")
	p := startProxy(t, nil)
	w := dialWire(t, p.addr)
	w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", origin)
	status, header := w.head()
	testutil.Equal(t, strings.HasPrefix(status, "HTTP/1.1 299"), true, "status %q", status)
	// No Content-Type is guessed.
	sameLines(t, header, []string{"Content-Length: 3", "Date: Thu, 01 Jan 1970 00:00:00 GMT", "X-Stays: 1", "Set-Cookie: a",
		"Set-Cookie: b", "Via: 1.1 fred", "Via: 1.1 " + p.pseudonym})
	w.expect("<p>")
}

// A watch is a chunked response whose events must arrive as they come.
func TestStreamingIsNotBuffered(t *testing.T) {
	next := make(chan string)
	origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush()
		for event := range next {
			_, _ = io.WriteString(w, event)
			_ = http.NewResponseController(w).Flush()
		}
	})
	w := dialProxy(t, nil)
	resp := w.get("http://" + origin + "/watch") // the header comes before any event
	for i := range 3 {
		event := fmt.Sprintf(`{"n":%d}`, i)
		next <- event
		got := make([]byte, len(event))
		testutil.NoError(t, testutil.Err(io.ReadFull(resp.Body, got)))
		testutil.Equal(t, string(got), event, "event %d", i)
	}
	close(next)
	testutil.Equal(t, body(t, resp), "", "content behind the events")
}

// An upload streams too, and its answer may come before its end.
func TestFullDuplex(t *testing.T) {
	origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		_ = rc.EnableFullDuplex()
		_ = rc.Flush()
		buf := make([]byte, 100)
		for {
			n, err := r.Body.Read(buf)
			_, _ = w.Write(bytes.ToUpper(buf[:n]))
			_ = rc.Flush()
			if err != nil {
				return
			}
		}
	})
	w := dialProxy(t, nil)
	w.send("POST http://%s/ HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", origin)
	resp := w.response("POST")
	for _, word := range []string{"one", "two"} {
		w.send("3\r\n%s\r\n", word)
		got := make([]byte, 3)
		testutil.NoError(t, testutil.Err(io.ReadFull(resp.Body, got)))
		testutil.Equal(t, string(got), strings.ToUpper(word), "the answer")
	}
	w.send("0\r\n\r\n")
	testutil.Equal(t, body(t, resp), "", "content behind the words")
}

// An origin that refuses an upload midway is heard: by a client that has stopped sending and
// only listens, and by one that reads nothing before it has sent everything, as most do,
// whatever the sockets hold of its upload.
func TestEarlyAnswerToUpload(t *testing.T) {
	const size = 32 << 20
	testutil.Each(t, map[string]int64{"stalled": 10, "whole": size}, func(t *testing.T, sent int64) {
		origin := testutil.Serve(t, func(c *net.TCPConn) {
			_, _ = bufio.NewReader(c).Peek(1)
			_, _ = io.WriteString(c, "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")
			if sent == size {
				_ = c.CloseWrite()
			}
			_, _ = io.Copy(io.Discard, c)
		})
		w := dialProxy(t, nil)
		w.send("POST http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", origin, size)
		testutil.NoError(t, testutil.Err(io.CopyN(w, zeros{}, sent)))
		resp := w.response("POST")
		testutil.Equal(t, resp.StatusCode, 413, "status")
		testutil.Equal(t, body(t, resp), "no", "content")
		testutil.Equal(t, resp.Close, true, "the connection ends")
		w.expectEnd()
	})
}

// The rest of an upload must never be taken for a request.
func TestRestOfUploadIsNoRequest(t *testing.T) {
	reached := make(chan struct{}, 9)
	victim := startOrigin(t, func(http.ResponseWriter, *http.Request) { reached <- struct{}{} })
	origin, _ := rawOrigin(t, "HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n")
	w := dialProxy(t, nil)
	w.send("POST http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", origin)
	w.answered(403, "an upload")
	_, _ = fmt.Fprintf(w, "GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", victim)
	_, _ = io.Copy(io.Discard, w.r)
	testutil.Equal(t, len(reached), 0, "requests that were taken out of it")
}

// A request that gives its content's length twice, by chunks and in bytes, is
// the last of its connection, since somebody before us may have gone by either
// (RFC 9112 §6.1): it is answered, and a request after it is not. So is one in
// HTTP/1.0, whatever it asks for: whether its content came in chunks is not known, so what
// follows may be its content.
func TestTwoLengthsEndTheConnection(t *testing.T) {
	const twoLengths = "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n"
	for name, tc := range map[string]struct{ version, fields, content, taken string }{
		"two lengths":           {"1.1", twoLengths, "2\r\nhi\r\n0\r\n\r\n", "hi"},
		"HTTP/1.0":              {"1.0", "", "", ""},
		"HTTP/1.0, chunks":      {"1.0", "Transfer-Encoding: chunked\r\n", "", ""},
		"HTTP/1.0, two lengths": {"1.0", twoLengths, "0\r\n\n", "0\r\n\n"},
	} {
		t.Run(name, func(t *testing.T) {
			reached := make(chan string, 9)
			origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
				got, _ := io.ReadAll(r.Body)
				reached <- r.URL.Path + " " + string(got)
				hello(w, r)
			})
			w := dialProxy(t, nil)
			w.send("POST http://%s/first HTTP/%s\r\nHost: x\r\nConnection: keep-alive\r\n%s\r\n%s"+
				"GET http://%[1]s/second HTTP/%[2]s\r\nHost: x\r\n\r\n", origin, tc.version, tc.fields, tc.content)
			resp := w.response("POST")
			testutil.Equal(t, body(t, resp), "hello", "content")
			testutil.Equal(t, resp.Close, true, "the connection ends")
			w.expectEnd()
			testutil.Equal(t, testutil.Receive(t, "the request", reached), "/first "+tc.taken, "what came")
			testutil.Equal(t, len(reached), 0, "requests behind it")
		})
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// The client is told to go on when the origin says so, and not before.
func TestExpectContinueEndToEnd(t *testing.T) {
	asked, goOn := make(chan struct{}), make(chan struct{})
	origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		testutil.Equal(t, r.Header.Get("Expect"), "100-continue", "Expect")
		close(asked)
		<-goOn
		b, _ := io.ReadAll(r.Body) // sends 100
		_, _ = w.Write(b)
	})
	p := startProxy(t, nil)
	p.brief.ExpectContinueTimeout = 2 * maxWait // it is not that which lets the client go on
	w := dialWire(t, p.addr)
	w.send("PUT http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n", origin)
	testutil.Receive(t, "the request", asked)
	_ = w.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	testutil.Fails(t, testutil.Err(w.r.ReadByte()), "a read before the origin said anything")
	_ = w.SetReadDeadline(time.Now().Add(maxWait))
	close(goOn)
	status, _ := w.head()
	testutil.Equal(t, status, "HTTP/1.1 100 Continue", "the first answer")
	w.send("data")
	testutil.Equal(t, body(t, w.response("PUT")), "data", "content")
}

func TestExpectContinueRefusedByOrigin(t *testing.T) {
	origin := startOrigin(t, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	p := startProxy(t, nil)
	p.brief.ExpectContinueTimeout = 2 * maxWait
	w := dialWire(t, p.addr)
	w.send("PUT http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n", origin)
	status, _ := w.head()
	testutil.Equal(t, status, "HTTP/1.1 401 Unauthorized", "the answer")
}

// An origin that knows no Expect waits for content that the client holds back. The client is
// told to go on no later than curl and Go's clients would by themselves.
func TestExpectContinueIgnoredByOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := piped(t, &tunnel.Forwarder{}, func(conn net.Conn, r *bufio.Reader) {
			data := make([]byte, 4)
			_, _ = io.ReadFull(r, data)
			_, _ = fmt.Fprintf(conn, "HTTP/1.0 200 OK\r\n\r\nthanks for %s", data)
		})
		began := time.Now()
		_, _ = io.WriteString(client, "PUT http://x:1/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n")
		r := bufio.NewReader(client)
		line, _ := r.ReadString('\n')
		testutil.Equal(t, line, "HTTP/1.1 100 Continue\r\n", "the first answer")
		testutil.AtMost(t, time.Since(began), time.Second, "time until it is told to go on")
		_, _ = r.ReadString('\n')
		_, _ = io.WriteString(client, "data")
		testutil.Equal(t, body(t, testutil.Must(http.ReadResponse(r, nil))(t)), "thanks for data", "content")
	})
}

func TestHTTP10Client(t *testing.T) {
	origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		testutil.Equal(t, r.Proto, "HTTP/1.1", "the version at the origin")
		_, _ = io.WriteString(w, "one,")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "two")
	})
	w := dialProxy(t, nil)
	w.send("GET http://%s/ HTTP/1.0\r\n\r\n", origin)
	status, header := w.head()
	testutil.Holds(t, strings.HasSuffix(status, " 200 OK") && !strings.Contains(strings.Join(header, "\n"), "Transfer-Encoding"),
		"%q %q", status, header)
	w.expect("one,two")
	w.expectEnd()
}

// A response that breaks off must not look whole, to any client.
func TestBrokenResponse(t *testing.T) {
	for name, response := range map[string]string{
		"chunked":   "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
		"length":    "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello",
		"bad chunk": "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\nzz\r\n",
	} {
		for _, version := range []string{"HTTP/1.1", "HTTP/1.0"} {
			t.Run(name+" "+version, func(t *testing.T) {
				origin := testutil.Serve(t, func(c *net.TCPConn) {
					w := newWire(t, c)
					w.head()
					_, _ = io.WriteString(c, response)
				})
				w := dialProxy(t, nil)
				w.send("GET http://%s/ %s\r\nHost: x\r\n\r\n", origin, version)
				resp, err := http.ReadResponse(w.r, &http.Request{Method: "GET"})
				if err != nil { // an HTTP/1.0 client may see the reset first
					return
				}
				testutil.Fails(t, testutil.Err(io.ReadAll(resp.Body)), "reading the content")
			})
		}
	}
}

func TestPipelinedRequests(t *testing.T) {
	origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.URL.Path) })
	w := dialProxy(t, nil)
	var all strings.Builder
	for i := range 20 {
		_, _ = fmt.Fprintf(&all, "GET http://%s/%d HTTP/1.1\r\nHost: x\r\n\r\n", origin, i)
	}
	w.send("%s", all.String())
	for i := range 20 {
		testutil.Equal(t, body(t, w.response("GET")), fmt.Sprintf("/%d", i), "response %d", i)
	}
}

func TestConnectionsAreReused(t *testing.T) {
	origin := startOrigin(t, hello)
	p := startProxy(t, nil)
	for range 5 { // also across clients, and although these say close
		w := dialWire(t, p.addr)
		for range 3 {
			_ = body(t, w.get("http://"+origin+"/"))
		}
		w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", origin)
		_ = body(t, w.response("GET"))
		w.expectEnd()
	}
	testutil.Equal(t, p.dials.Load(), 1, "connections for 20 requests")
	p.CloseIdle()
	w := dialWire(t, p.addr)
	_ = body(t, w.get("http://"+origin+"/"))
	testutil.Equal(t, p.dials.Load(), 2, "connections, after the first was closed as idle")
}

// A dial that never ends is ended, also for a client whose leaving nobody can
// see behind content that nobody reads yet.
func TestForwardDialIsBounded(t *testing.T) {
	w := dialProxy(t, func(o *Options) {
		o.Forwarder.DialTimeout = 50 * time.Millisecond
		o.Forward = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			<-ctx.Done()
			return nil, tunnel.AsDialError(f.Address, ctx.Err())
		})
	})
	w.send("PUT http://example.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\nhalf")
	w.answered(504, "status")
}

// An answer that is not one, or whose header costs too much, becomes a 502.
func TestBadAnswers(t *testing.T) {
	for name, tc := range map[string]struct {
		answer string
		status int
	}{
		"nothing":         {"", 502},
		"garbage":         {"SSH-2.0-OpenSSH\r\n", 502},
		"10 MB header":    {"HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 10<<20) + "\r\nContent-Length: 0\r\n\r\n", 502},
		"unasked switch":  {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", 502},
		"many fields":     {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + fields(maxFields-10) + "\r\n", 200},
		"too many fields": {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n" + fields(maxFields+1) + "\r\n", 502},
		"long header":     {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: " + strings.Repeat("x", maxResponseHeader-100) + "\r\n\r\n", 200},
		"too long header": {"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX: " + strings.Repeat("x", maxResponseHeader) + "\r\n\r\n", 502},
		"status 42":       {"HTTP/1.1 042 What\r\nContent-Length: 0\r\n\r\n", 502},
		"proxy auth":      {"HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=secret\r\nContent-Length: 6\r\n\r\nsecret", 502},
	} {
		t.Run(name, func(t *testing.T) {
			origin := testutil.Serve(t, func(c *net.TCPConn) {
				w := newWire(t, c)
				w.head()
				_, _ = io.WriteString(c, tc.answer)
			})
			w := dialProxy(t, nil)
			resp := w.get("http://" + origin + "/")
			if text := body(t, resp); resp.StatusCode != tc.status || strings.Contains(text, "secret") || strings.Contains(text, origin) {
				t.Errorf("%s: %q", resp.Status, text)
			} else if strings.Contains(text, "ustomer proxy") {
				t.Errorf("%q, and there is no customer's proxy", text)
			}
		})
	}
}

func TestSilentDestination(t *testing.T) {
	origin := testutil.Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	w := dialProxy(t, func(o *Options) { o.responseTimeout = 50 * time.Millisecond })
	testutil.Equal(t, w.get("http://"+origin+"/").StatusCode, 504, "status")
}

// Where a customer proxy is to blame, the client is told so and not sent to look
// at the destination.
func TestCustomerProxyFailures(t *testing.T) {
	cert, _ := testCertificate(t)
	secure := tls.NewListener(testutil.Listen(t), &tls.Config{Certificates: []tls.Certificate{cert}})
	go func() {
		for c, err := secure.Accept(); err == nil; c, err = secure.Accept() {
			_ = c.(*tls.Conn).Handshake()
			_ = c.Close()
		}
	}()
	garbage := testutil.Serve(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, "SSH-2.0-secret\r\n") })
	silent := testutil.Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	asks := testutil.Serve(t, func(c *net.TCPConn) {
		newWire(t, c).head()
		_, _ = io.WriteString(c, "HTTP/1.1 407 No\r\nProxy-Authenticate: Basic realm=secret\r\nContent-Length: 0\r\n\r\n")
	})
	for name, tc := range map[string]struct {
		by     string
		dial   error
		status int
		text   string
	}{
		"refused": {by: "http://u:secret@proxy.test", dial: &tunnel.DialError{Failure: tunnel.FailRefused}, status: 502, text: "Customer proxy: connection refused.\n"},
		"garbage": {by: "http://u:secret@" + garbage, status: 503, text: "The customer proxy hung up or does not speak HTTP.\n"},
		"silent":  {by: "http://u:secret@" + silent, status: 504, text: "The customer proxy did not answer in time.\n"},
		"password": {by: "http://u:secret@" + asks, status: 502, text: "The customer proxy wants authentication: " +
			"give user and password in its URL, or others than are there, for Basic authentication.\n"},
		"untrusted": {by: "https://u:secret@" + secure.Addr().String(), status: 503, text: "The customer proxy shows a certificate that is not trusted.\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log := logrus.New()
			log.SetOutput(&out)
			p := startProxy(t, func(o *Options) {
				o.Log, o.AccessLog, o.Transport.Proxy = log, true, fixedProxy(tc.by)
				if tc.status == http.StatusGatewayTimeout {
					o.responseTimeout = 100 * time.Millisecond
				}
				if tc.dial != nil {
					o.Forward = failing(tc.dial)
				}
			})
			w := dialWire(t, p.addr)
			w.send("GET http://example.test/ HTTP/1.1\r\nHost: x\r\n\r\n")
			testutil.Equal(t, w.answered(tc.status, "status"), tc.text, "content")
			_ = w.Close()
			p.end(t)
			testutil.Contains(t, out.String(), `error="`, "the line about it")
		})
	}
}

// A request goes to the customer's proxy in absolute form, with the
// credentials of its URL, which nobody else sees.
func TestCustomerProxy(t *testing.T) {
	customer, heads := rawOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := startProxy(t, func(o *Options) { o.Transport.Proxy = fixedProxy("http://user:p%40ss@" + customer) })
	w := dialWire(t, p.addr)
	w.send("GET http://example.test/x?y HTTP/1.1\r\nHost: other.test\r\nProxy-Authorization: Basic bWluZQ==\r\nAuthorization: origins\r\n\r\n")
	_ = w.response("GET")
	head := testutil.Receive(t, "the request", heads)
	testutil.Equal(t, head[0], "GET http://example.test/x?y HTTP/1.1", "request line")
	sameLines(t, head[1:], []string{"Host: example.test", "Authorization: origins", "Via: 1.1 " + p.pseudonym,
		"Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte("user:p@ss"))})
}

func TestOptionsForAServer(t *testing.T) {
	testutil.Each(t, map[string]bool{"direct": false, "by a customer's proxy": true}, func(t *testing.T, via bool) {
		next, heads := rawOrigin(t, "HTTP/1.1 204 No Content\r\n\r\n")
		want := "OPTIONS * HTTP/1.1"
		w := dialProxy(t, func(o *Options) {
			if via {
				want = "OPTIONS http://" + next + " HTTP/1.1"
				o.Transport.Proxy = fixedProxy("http://" + next)
			}
		})
		w.send("OPTIONS http://%s HTTP/1.1\r\nHost: x\r\nMax-Forwards: 7\r\n\r\n", next)
		_ = w.response("OPTIONS")
		head := testutil.Receive(t, "the request", heads)
		testutil.Holds(t, head[0] == want && strings.Contains(strings.Join(head, "\n"), "Max-Forwards: 6"),
			"%q; want %q", head, want)
		w.send("OPTIONS http://%s? HTTP/1.1\r\nHost: x\r\n\r\n", next) // which is no longer for the whole server
		_ = w.response("OPTIONS")
		head = testutil.Receive(t, "the request", heads)
		testutil.Equal(t, strings.HasSuffix(head[0], "/? HTTP/1.1"), true, "%q with a query", head[0])
		w.send("OPTIONS http://%s HTTP/1.1\r\nHost: x\r\nMax-Forwards: 0\r\n\r\n", next)
		testutil.Equal(t, w.response("OPTIONS").StatusCode, 501, "status after the last forward")
		testutil.Equal(t, len(heads), 0, "requests")
	})
}

// The path is the client's, even where it has what should have been escaped.
func TestPathIsKept(t *testing.T) {
	origin, heads := rawOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	direct := dialProxy(t, nil)
	next := dialWire(t, startProxy(t, func(o *Options) { o.Transport.Proxy = fixedProxy("http://" + origin) }).addr)
	for path, absolute := range map[string]bool{
		"/a%2Fb|c": false, "/a%2fb{c}?q=%2F|": false, "/caf\xc3\xa9%2F": false, "/a%3Bb^?": false, "/~a%7E": false, "//a%2Fb|c": true,
	} {
		direct.send("GET http://%s%s HTTP/1.1\r\nHost: x\r\n\r\n", origin, path)
		_ = body(t, direct.response("GET"))
		want := "GET " + path + " HTTP/1.1"
		if absolute {
			want = "GET http://" + origin + path + " HTTP/1.1"
		}
		testutil.Equal(t, testutil.Receive(t, "the request", heads)[0], want, "request line")
		next.send("GET http://there.test:81%s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		_ = body(t, next.response("GET"))
		got, want := testutil.Receive(t, "the request", heads)[0], "GET http://there.test:81"+path+" HTTP/1.1"
		testutil.Equal(t, got, want, "by a proxy")
	}
}

// A user and password in the URI, which wget and Java send, reach no next hop in any form.
func TestUserInURIIsDropped(t *testing.T) {
	origin, heads := rawOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	direct := dialProxy(t, nil)
	next := dialWire(t, startProxy(t, func(o *Options) { o.Transport.Proxy = fixedProxy("http://" + origin) }).addr)
	for target, want := range map[*wire]string{direct: "", next: "http://" + origin} {
		for request, line := range map[string]string{
			"GET http://user:pw@%s/x":        "GET " + want + "/x HTTP/1.1",
			"GET http://user:pw@%s/a%%2Fb|c": "GET " + want + "/a%2Fb|c HTTP/1.1",
			"GET http://user:pw@%s//a%%2F|":  "GET http://" + origin + "//a%2F| HTTP/1.1",
			"OPTIONS http://user:pw@%s":      "OPTIONS " + cmp.Or(want, "*") + " HTTP/1.1",
		} {
			target.send(request+" HTTP/1.1\r\nHost: x\r\n\r\n", origin)
			_ = body(t, target.response("GET"))
			head := testutil.Receive(t, "the request", heads)
			testutil.Equal(t, head[0], line, "request line of %s", request)
			for _, field := range head[1:] {
				testutil.Equal(t, strings.HasPrefix(field, "Authorization:"), false, "field %q", field)
			}
		}
	}
}

func TestHTTPSURIIsRefused(t *testing.T) {
	w := dialProxy(t, nil)
	w.send("GET https://example.test/ HTTP/1.1\r\nHost: x\r\n\r\n")
	testutil.Contains(t, w.answered(501, "status"), "CONNECT", "content")
}

// A client that leaves ends its dial, and its request at the origin.
func TestForwardClientLeaves(t *testing.T) {
	t.Parallel() // it waits
	t.Run("during the dial", func(t *testing.T) {
		t.Parallel()
		dialing, ended := make(chan struct{}), make(chan struct{})
		w := dialProxy(t, func(o *Options) {
			o.Forward = tunnel.DialerFunc(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
				close(dialing)
				<-ctx.Done()
				close(ended)
				return nil, ctx.Err()
			})
		})
		w.send("GET http://example.test/ HTTP/1.1\r\nHost: x\r\n\r\n")
		testutil.Receive(t, "the dial", dialing)
		_ = w.Close()
		testutil.Receive(t, "the dial's end", ended)
	})
	t.Run("during a watch", func(t *testing.T) {
		t.Parallel()
		ended := make(chan struct{})
		origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			close(ended)
		})
		w := dialProxy(t, nil)
		_ = w.get("http://" + origin + "/")
		_ = w.Close()
		testutil.Receive(t, "the request's end", ended)
	})
	t.Run("during its upload", func(t *testing.T) {
		t.Parallel()
		ended := make(chan error, 1)
		origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
			_, err := io.Copy(io.Discard, r.Body)
			ended <- err
		})
		w := dialProxy(t, nil)
		w.send("PUT http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nhalf", origin)
		_ = w.CloseWrite()
		testutil.Fails(t, testutil.Receive(t, "the upload's end", ended), "half an upload")
		w.answered(400, "what the client is told")
	})
}

// A client that has asked all it wants and ended its side still gets its
// response, however long that takes once it flows. net/http would cancel it.
func TestForwardHalfClose(t *testing.T) {
	t.Parallel() // it takes its time
	origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		for range 12 {
			time.Sleep(halfCloseTime / 10)
			_, _ = io.WriteString(w, "x")
			_ = http.NewResponseController(w).Flush()
		}
	})
	p := startProxy(t, nil)
	testutil.Each(t, map[string]string{
		"GET":       "GET http://%s/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
		"POST":      "POST http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nhi",
		"pipelined": "GET http://%[1]s/ HTTP/1.1\r\nHost: x\r\n\r\nGET http://%[1]s/ HTTP/1.1\r\nHost: x\r\n\r\n",
	}, func(t *testing.T, request string) {
		t.Parallel()
		w := dialWire(t, p.addr)
		w.send(request, origin)
		_ = w.CloseWrite()
		for range strings.Count(request, "HTTP/1.1") {
			testutil.Equal(t, body(t, w.response("GET")), "xxxxxxxxxxxx", "content")
		}
		w.expectEnd()
	})
}

// TLS to a customer's proxy is verified by the proxy's name; an upgrade works
// through it, half-close included.
func TestCustomerProxyOverTLS(t *testing.T) {
	cert, pool := testCertificate(t)
	ln := tls.NewListener(testutil.Listen(t), &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	var serving sync.WaitGroup
	defer serving.Wait()
	defer ln.Close()
	serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			serving.Go(func() { serveUpgradingProxy(c) })
		}
	})
	for name, tc := range map[string]struct {
		host, status string
	}{
		"trusted": {"proxy.test", "HTTP/1.1 101 Switching Protocols"}, "another name": {"other.test", "HTTP/1.1 503 Service Unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			w := dialProxy(t, func(o *Options) {
				o.Transport.Proxy = fixedProxy("https://user:pw@" + tc.host + ":8443")
				o.Transport.TLSClientConfig = &tls.Config{RootCAs: pool}
				o.Forward = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
					testutil.Equal(t, f.Address, tc.host+":8443", "the address that was dialed")
					return dialTCP(ctx, f.To(ln.Addr().String()))
				})
			})
			w.send(upgradeRequest, "example.test")
			status, _ := w.head()
			testutil.Equal(t, status, tc.status, "the answer")
			if name != "trusted" {
				return
			}
			w.send("hello")
			_ = w.CloseWrite()
			w.expect("hello")
			w.expectEnd()
		})
	}
}

// serveUpgradingProxy checks one request, switches protocols and echoes until
// the client ends its side.
func serveUpgradingProxy(c net.Conn) {
	defer c.Close()
	r := bufio.NewReader(c)
	req, err := http.ReadRequest(r)
	if err != nil || req.RequestURI != "http://example.test/ws" || req.Header.Get("Proxy-Authorization") == "" {
		return
	}
	_, _ = io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
	_, _ = io.Copy(c, r)
}

// Bounds are what the pages say.
func TestFiguresAreDocumented(t *testing.T) {
	const page, sidecars = "../docs/security.md", "../docs/sidecars.md"
	testutil.Says(t, page, "take beyond %v KiB of memory each", usualHeader>>10)
	testutil.Says(t, page, "has %v MiB for all together, or an eighth", maxHeaders>>20)
	testutil.Says(t, page, "a header of %v KiB and %v fields, trailers of 4 KiB, %v interim responses with %v KiB of header together", maxResponseHeader>>10, maxFields, maxInterim, maxInterimHeader>>10)
	testutil.Says(t, sidecars, "The answer to a plain request must begin within %v minutes", int64(defaultResponseTimeout/time.Minute))
	testutil.Says(t, sidecars, "%v HTTP(S) |", DefaultMaxConns)
	testutil.Says(t, "../docs/operations.md", "open to destinations for the next request, %v at most", maxIdle)
}
