package httpsproxy

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/admission"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestConnectAnswersInTheClientsVersion(t *testing.T) {
	target := testutil.Echo(t)
	p := startProxy(t, nil)
	for _, version := range []string{"HTTP/1.0", "HTTP/1.1"} {
		w := dialWire(t, p.addr)
		w.send("CONNECT %s %s\r\nHost: other.test\r\n\r\n", target, version) // Host does not count
		status, header := w.head()
		testutil.Equal(t, status, version+" 200 Connection Established", "status")
		testutil.Equal(t, len(header), 0, "fields")
		w.send("ping")
		w.expect("ping")
		_ = w.CloseWrite()
		w.expectEnd()
	}
}

// Goproxy's hijack drops what net/http has buffered.
func TestConnectKeepsPipelinedBytes(t *testing.T) {
	target := testutil.Echo(t)
	testutil.Each(t, map[string]int{"few": 5, "ClientHello": 1800, "more than is read ahead": 300 << 10}, func(t *testing.T, size int) {
		w := dialProxy(t, nil)
		flight := strings.Repeat("early", size/5)
		go w.send("CONNECT %s HTTP/1.1\r\n\r\n%s", target, flight)
		status, _ := w.head()
		testutil.Contains(t, status, " 200 ", "the status")
		w.expect(flight)
		w.send("late")
		w.expect("late")
	})
}

func TestConnectKeepsBytesSentDuringTheDial(t *testing.T) {
	target := testutil.Echo(t)
	dialing, goOn := make(chan struct{}), make(chan struct{})
	w := dialProxy(t, func(o *Options) {
		o.Forwarder.Dialer = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			close(dialing)
			<-goOn
			return dialTCP(ctx, f)
		})
	})
	w.send("CONNECT %s HTTP/1.1\r\n\r\nfirst,", target)
	testutil.Receive(t, "the dial", dialing)
	w.send("second,")
	_ = w.CloseWrite() // all is said, but the answer is awaited
	close(goOn)
	w.head()
	w.expect("first,second,")
	w.expectEnd()
}

func TestConnectAfterPlainRequest(t *testing.T) {
	origin := startOrigin(t, hello)
	target := testutil.Echo(t)
	w := dialProxy(t, nil)
	w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\nCONNECT %s HTTP/1.1\r\n\r\nraw", origin, target)
	testutil.Equal(t, body(t, w.response("GET")), "hello", "content")
	w.head()
	w.expect("raw")
}

// relayed are the ways to a target, which handle serves, through a proxy of its own.
var relayed = map[string]func(t *testing.T, handle func(*wire)) *wire{
	"CONNECT": func(t *testing.T, handle func(*wire)) *wire {
		w := dialProxy(t, nil)
		w.tunnelTo(testutil.Serve(t, func(c *net.TCPConn) { handle(newWire(t, c)) }))
		return w
	},
	"upgrade": func(t *testing.T, handle func(*wire)) *wire {
		w := dialProxy(t, nil)
		w.upgrade(upgradeTarget(t, "", handle), "")
		return w
	},
}

// hashes answers with the hash of all that it gets.
func hashes(w *wire) {
	h := sha256.New()
	_, _ = io.Copy(h, w.r)
	_, _ = fmt.Fprintf(w, "%x", h.Sum(nil))
}

// A client that ends its side still gets all of the answer, and the hash of
// everything that it sent. Goproxy loses it where the client speaks TLS.
func TestHalfClose(t *testing.T) {
	data := make([]byte, 8<<20)
	_, _ = rand.Read(data)
	want := fmt.Sprintf("%x", sha256.Sum256(data))
	for how, open := range relayed {
		t.Run(how, func(t *testing.T) {
			w := open(t, hashes)
			testutil.Must(w.Write(data))(t)
			_ = w.CloseWrite()
			w.expect(want)
			w.expectEnd()
		})
	}
	t.Run("CONNECT in TLS", func(t *testing.T) {
		client := connectInTLS(t, testutil.Serve(t, func(c *net.TCPConn) { hashes(newWire(t, c)) }))
		testutil.Must(client.Write(data))(t)
		_ = client.CloseWrite()
		testutil.Equal(t, string(testutil.Must(io.ReadAll(client))(t)), want, "the hash")
	})
}

func TestResets(t *testing.T) {
	for how, open := range relayed {
		t.Run(how+", of the target reach the client", func(t *testing.T) {
			w := open(t, func(w *wire) {
				_, _ = io.ReadFull(w.r, make([]byte, 1))
				_ = w.SetLinger(0)
			})
			w.send("x")
			testutil.ErrorIs(t, testutil.Err(w.r.ReadByte()), syscall.ECONNRESET, "the client's read")
		})
		t.Run(how+", of the client reach the target", func(t *testing.T) {
			got := make(chan error, 1)
			w := open(t, func(w *wire) {
				_, err := w.r.ReadByte()
				got <- err
			})
			_ = w.SetLinger(0)
			_ = w.Close()
			testutil.ErrorIs(t, testutil.Receive(t, "the target's end", got), syscall.ECONNRESET, "the target's read")
		})
	}
}

// A client that leaves has its dial cancelled, however it leaves.
func TestConnectClientLeavesDuringDial(t *testing.T) {
	testutil.Each(t, map[string]func(*wire){
		"close": func(w *wire) { _ = w.Close() },
		"reset": func(w *wire) { _ = w.SetLinger(0); _ = w.Close() },
	}, func(t *testing.T, leave func(*wire)) {
		dialing, ended := make(chan struct{}), make(chan error, 1)
		w := dialProxy(t, func(o *Options) {
			o.Forwarder.DialTimeout = 2 * maxWait
			o.Forwarder.Dialer = tunnel.DialerFunc(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
				close(dialing)
				<-ctx.Done()
				ended <- context.Cause(ctx)
				return nil, ctx.Err()
			})
		})
		w.send("CONNECT example.test:443 HTTP/1.1\r\n\r\n")
		testutil.Receive(t, "the dial", dialing)
		leave(w)
		testutil.ErrorIs(t, testutil.Receive(t, "the dial's end", ended), admission.ErrLeft, "why the dial was cancelled")
	})
}

// Statuses come from types; what is internal stays in the log.
func TestFailures(t *testing.T) {
	for _, tc := range []struct {
		err         error
		status      int
		text, plain string // what CONNECT hears, and a plain request; "": the same
	}{
		{&tunnel.DialError{Failure: tunnel.FailRefused, Err: errTest}, 502, "Connection refused.\n", ""},
		{&tunnel.DialError{Failure: tunnel.FailTimeout, Address: "10.11.12.13:1"}, 504, "I/o timeout.\n", ""},
		{&tunnel.DialError{Failure: tunnel.FailNoAgent, Err: errTest}, 503, "No agent available.\n", ""},
		{&tunnel.DialError{Failure: tunnel.FailDenied, Reason: "metadata addresses are not allowed"}, 403, "Metadata addresses are not allowed.\n", ""},
		{&tunnel.DialError{Failure: tunnel.FailAuth, Reason: "customer proxy wants authentication"}, 502, "Customer proxy wants authentication.\n", ""},
		{fmt.Errorf("wrapped: %w", &tunnel.DialError{Failure: tunnel.FailUnavailable}), 503, "Tunnel unavailable.\n", ""},
		{&tunnel.DialError{Failure: tunnel.FailInternal, Reason: "two\r\nlines"}, 502, "Two\r\nlines.\n", ""},
		{errTest, 502, "Internal error.\n", "The destination closed the connection or did not answer in HTTP.\n"},
	} {
		p := startProxy(t, func(o *Options) { o.Forwarder.Dialer, o.Forward = failing(tc.err), failing(tc.err) })
		w := dialWire(t, p.addr)
		hears := func(what, reason, want string) {
			t.Helper()
			resp := w.response("GET")
			testutil.Equal(t, resp.Status, fmt.Sprint(tc.status, " ", reason), "%s, %v", what, tc.err)
			testutil.Equal(t, body(t, resp), want, "%s, %v", what, tc.err)
		}
		for range 2 { // the connection goes on
			w.send("GET http://example.test/ HTTP/1.1\r\nHost: x\r\n\r\n")
			hears("GET", http.StatusText(tc.status), cmp.Or(tc.plain, tc.text))
		}
		for _, what := range []string{"CONNECT after GET", "CONNECT"} {
			w.send("CONNECT example.test:443 HTTP/1.1\r\n\r\nearly bytes")
			hears(what, strings.ReplaceAll(strings.TrimSuffix(tc.text, ".\n"), "\r\n", "  "), tc.text)
			w.expectEnd()
			w = dialWire(t, p.addr)
		}
	}
}

// badTargets are refused with 400 before anything is dialed.
var badTargets = map[string]string{
	"no port":           "CONNECT example.test HTTP/1.1\r\n\r\n",
	"empty port":        "CONNECT example.test: HTTP/1.1\r\n\r\n",
	"port 0":            "CONNECT example.test:0 HTTP/1.1\r\n\r\n",
	"port 65536":        "CONNECT example.test:65536 HTTP/1.1\r\n\r\n",
	"port in words":     "CONNECT example.test:https HTTP/1.1\r\n\r\n",
	"negative port":     "CONNECT example.test:-1 HTTP/1.1\r\n\r\n",
	"empty host":        "CONNECT :443 HTTP/1.1\r\n\r\n",
	"a dot":             "CONNECT .:443 HTTP/1.1\r\n\r\n",
	"300 bytes":         "CONNECT " + strings.Repeat("a", 300) + ":443 HTTP/1.1\r\n\r\n",
	"NUL":               "CONNECT exa\x00mple.test:443 HTTP/1.1\r\n\r\n",
	"a space":           "CONNECT exa mple.test:443 HTTP/1.1\r\n\r\n",
	"a tab":             "CONNECT exa\tmple.test:443 HTTP/1.1\r\n\r\n",
	"DEL":               "CONNECT exa\x7fmple.test:443 HTTP/1.1\r\n\r\n",
	"user":              "CONNECT user@example.test:443 HTTP/1.1\r\n\r\n",
	"a path":            "CONNECT /example.test:443 HTTP/1.1\r\n\r\n",
	"a path behind":     "CONNECT example.test:443/x HTTP/1.1\r\n\r\n",
	"a URI":             "CONNECT https://example.test:443 HTTP/1.1\r\n\r\n",
	"bare IPv6":         "CONNECT ::1:443 HTTP/1.1\r\n\r\n",
	"two Hosts":         "CONNECT example.test:443 HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
	"content":           "CONNECT example.test:443 HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
	"chunked":           "CONNECT example.test:443 HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"no target":         "CONNECT HTTP/1.1\r\n\r\n",
	"both lengths":      "POST http://example.test/ HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
	"origin form":       "GET / HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"server form":       "OPTIONS * HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"no authority":      "GET http:///x HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"opaque":            "GET http:example.test HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"ftp":               "GET ftp://example.test/ HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"URI's port 0":      "GET http://example.test:0/ HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"URI's port 65536":  "GET http://example.test:65536/ HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"URI's NUL":         "GET http://exa\x00mple.test/ HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"URI's escaped NUL": "GET http://exa%00mple.test/ HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"URI's space":       "GET http://exa mple.test/ HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"URI's 300 bytes":   "GET http://" + strings.Repeat("a", 300) + "/ HTTP/1.1\r\nHost: example.test\r\n\r\n",
	"no Host":           "GET http://example.test/ HTTP/1.1\r\n\r\n",
	"garbage":           "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
	"a space in a name": "GET http://example.test/ HTTP/1.1\r\nHost: a\r\nX Y: z\r\n\r\n",
}

func TestBadTargets(t *testing.T) {
	refuse := func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		t.Error("something was dialed")
		return nil, errTest
	}
	p := startProxy(t, func(o *Options) {
		o.Forwarder.Dialer = tunnel.DialerFunc(refuse)
		o.Forward = tunnel.DialerFunc(refuse)
	})
	for name, request := range badTargets {
		t.Run(name, func(t *testing.T) {
			w := dialWire(t, p.addr)
			w.send("%s", request)
			_ = w.CloseWrite()
			resp := w.response("GET")
			testutil.Equal(t, resp.StatusCode, 400, "the status")
			testutil.Equal(t, body(t, resp) != "", true, "there is a sentence")
		})
	}
}

func TestLoopsAreRefused(t *testing.T) {
	p := startProxy(t, nil)
	_, port, _ := net.SplitHostPort(p.addr)
	for _, host := range []string{"127.0.0.1", "localhost", "LOCALHOST.", "a.localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "127.1", "2130706433", "0x7f.1", "127.9.9.9"} {
		for _, request := range []string{
			fmt.Sprintf("CONNECT %s:%s HTTP/1.1\r\n\r\n", host, port),
			fmt.Sprintf("GET http://%s:%s/ HTTP/1.1\r\nHost: x\r\n\r\n", host, port),
		} {
			w := dialWire(t, p.addr)
			w.send("%s", request)
			w.answered(508, "%q", request)
		}
	}
}

// A loop by a name or another port is seen by Via.
func TestLoopByViaIsRefused(t *testing.T) {
	var p *proxy
	p = startProxy(t, func(o *Options) {
		o.Forward = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			return dialTCP(ctx, f.To(p.addr))
		})
		o.Transport.Proxy = fixedProxy("http://self.test:1")
	})
	testutil.Equal(t, dialWire(t, p.addr).get("http://example.test/").StatusCode, 508, "status")
}

// A tunnel's two directions end one by one by a unix socket, as on TCP.
func TestUnixHalfClose(t *testing.T) {
	ln := testutil.Must(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
	c := testutil.Must(net.Dial("unix", startProxyOn(t, ln, nil).addr))(t).(*net.UnixConn)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(maxWait))
	_, _ = io.WriteString(c, "CONNECT "+testutil.Echo(t)+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nping")
	_ = c.CloseWrite()
	const want = "HTTP/1.1 200 Connection Established\r\n\r\nping"
	testutil.Equal(t, string(testutil.Must(io.ReadAll(c))(t)), want, "the answer")
}
