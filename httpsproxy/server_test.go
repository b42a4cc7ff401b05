package httpsproxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/front"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestNewRefuses(t *testing.T) {
	good := func() Options {
		return Options{Options: front.Options{Forwarder: &tunnel.Forwarder{Dialer: tunnel.DialerFunc(dialTCP)}}, Forward: tunnel.DialerFunc(dialTCP), Transport: new(http.Transport)}
	}
	testutil.Must(New(good()))(t)
	for name, breakIt := range map[string]func(*Options){
		"no transport": func(o *Options) { o.Transport = nil },
		"no dial":      func(o *Options) { o.Forward = nil },
		"shared":       func(o *Options) { o.MaxConns = -1 },
	} {
		o := good()
		breakIt(&o)
		testutil.Fails(t, testutil.Err(New(o)), "%s", name)
	}
}

func TestLabelsAreDocumented(t *testing.T) {
	r := prometheus.NewRegistry()
	s := newServer(t, front.Options{Registerer: r, Forwarder: &tunnel.Forwarder{Dialer: tunnel.DialerFunc(dialTCP)}})
	outcomes := []string{outcomeInvalid, outcomeLoop, outcomeBroken}
	for failure := range tunnel.Failures() {
		outcomes = append(outcomes, failure.Label())
	}
	for _, outcome := range outcomes {
		s.count(&record{kind: kindConnect, outcome: outcome})
	}
	testutil.DocumentedLabels(t, "../docs/sidecars.md", "Metrics").Check(t, "", testutil.Must(r.Gather())(t))
}

// The process's own proxy variables are for its own dials, not its clients'.
func TestEnvironmentIsIgnored(t *testing.T) {
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		t.Setenv(name, "http://127.0.0.1:1")
	}
	target := testutil.Echo(t)
	origin := startOrigin(t, hello)
	p := startProxy(t, func(o *Options) {
		o.Forward = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) { return dialTCP(ctx, f.To(origin)) })
	})
	w := dialWire(t, p.addr)
	w.send("GET http://example.test/ HTTP/1.1\r\nHost: x\r\n\r\n") // a host that no rule exempts
	w.answered(200, "status")
	dialWire(t, p.addr).tunnelTo(target)
}

func TestSlowAndSilentClientsAreClosed(t *testing.T) {
	t.Parallel() // it waits

	const bound = 2 * time.Second // what a client says at once comes in time also on a busy machine
	p := startProxy(t, func(o *Options) { o.handshakeTimeout, o.keepAlive = bound, bound })
	testutil.Each(t, map[string]string{
		"nothing": "", "half a line": "CONN", "half a header": "GET http://example.test/ HTTP/1.1\r\nHost: x\r\n", "half a name": "GET http://example.test/ HTTP/1.1\r\nHo",
	}, func(t *testing.T, said string) {
		t.Parallel()
		w := dialWire(t, p.addr)
		w.send("%s", said)
		_, _ = io.Copy(io.Discard, w.r) // fails the test by its deadline
		testutil.Equal(t, testutil.Err(w.r.ReadByte()), io.EOF, "the read")
	})
	t.Run("drips", func(t *testing.T) {
		t.Parallel()
		w := dialWire(t, p.addr)
		stop := make(chan struct{})
		var dripping sync.WaitGroup
		dripping.Go(func() {
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
					_, _ = w.Write([]byte("A"))
				}
			}
		})
		testutil.Equal(t, os.IsTimeout(testutil.Err(io.Copy(io.Discard, w.r))), false, "it is not closed")
		close(stop)
		dripping.Wait()
	})
	t.Run("nothing after a request", func(t *testing.T) {
		t.Parallel()
		w := dialProxy(t, func(o *Options) { o.handshakeTimeout, o.keepAlive = maxWait, bound })
		w.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		_ = body(t, w.response("GET"))
		w.expectEnd()
	})
}

// At MaxConns with no connection idle, the next one is refused, and the others go on.
func TestConnectionCap(t *testing.T) {
	target := testutil.Echo(t)
	p := startProxy(t, func(o *Options) { o.MaxConns = 2 })
	one, two := dialWire(t, p.addr), dialWire(t, p.addr)
	one.tunnelTo(target)
	two.tunnelTo(target)
	if third, err := net.Dial("tcp", p.addr); err == nil { // else it was refused already
		_ = third.SetDeadline(time.Now().Add(maxWait))
		_, err := third.Read(make([]byte, 1))
		testutil.Holds(t, err != nil && !os.IsTimeout(err), "it is refused: %v", err)
		_ = third.Close()
	}
	_ = two.Close()
	testutil.Eventually(t, "a free slot", func() bool { return p.Slots.Count() == 1 })
	dialWire(t, p.addr).tunnelTo(target)
	one.send("alive")
	one.expect("alive")
	testutil.Equal(t, promtest.ToFloat64(p.Metrics.Refused.WithLabelValues()), 1, "refusals")
}

// Descriptors are divided: who asks beyond the part of those that are served is
// told so, and has a place again as soon as one is free.
func TestDescriptorsBoundServedConnections(t *testing.T) {
	target, origin := testutil.Echo(t), startOrigin(t, hello)
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	p := startProxy(t, func(o *Options) { o.Descriptors, o.Log = 8, log })
	one, two := dialWire(t, p.addr), dialWire(t, p.addr)
	one.tunnelTo(target)
	two.tunnelTo(target)
	for method, uri := range map[string]string{"CONNECT": target, "GET": "http://" + origin + "/"} {
		w := dialWire(t, p.addr)
		w.send("%s %s HTTP/1.1\r\nHost: x\r\n\r\n", method, uri)
		resp := w.response("GET")
		if method == "CONNECT" {
			testutil.Equal(t, resp.Status, "503 This proxy serves as many connections as its descriptors (ulimit -n) allow", "the status line")
		}
		testutil.Equal(t, resp.StatusCode, 503, "%s", method)
		testutil.Contains(t, body(t, resp), "ulimit -n", "content")
		w.expectEnd()
	}
	testutil.Equal(t, promtest.ToFloat64(p.Metrics.Refused.WithLabelValues()), 2, "refusals that were counted")
	_ = two.Close()
	testutil.Eventually(t, "a free place", func() bool {
		w := dialWire(t, p.addr)
		return w.get("http://"+origin+"/").StatusCode == 200
	})
	one.send("alive")
	one.expect("alive")
	_ = one.Close()
	p.end(t)
	testutil.Equal(t, strings.Count(out.String(), `error="This proxy serves as many`), strings.Count(out.String(), "status=503"),
		"lines about refusals that name the cause")
}

func TestDrain(t *testing.T) {
	target := testutil.Echo(t)
	next := make(chan struct{})
	origin := startOrigin(t, func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).Flush()
		<-next
		_, _ = io.WriteString(w, "done")
	})
	p := startProxy(t, func(o *Options) { o.Drain = maxWait })
	idle, fresh, tunneled, plain := dialWire(t, p.addr), dialWire(t, p.addr), dialWire(t, p.addr), dialWire(t, p.addr)
	idle.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n")
	_ = body(t, idle.response("GET"))
	tunneled.tunnelTo(target)
	plain.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", origin)
	resp := plain.response("GET")
	late := dialWire(t, p.addr)
	begun, answer := make(chan struct{}), make(chan struct{})
	slow := startOrigin(t, func(http.ResponseWriter, *http.Request) {
		close(begun)
		<-answer
	})
	late.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", slow)
	testutil.Receive(t, "the late request", begun)
	p.stop()
	idle.expectEnd()
	close(answer)
	last := late.response("GET")
	testutil.Equal(t, last.StatusCode, 200, "status")
	testutil.Equal(t, last.Close, true, "the client knows that it is the last")
	if c, err := net.Dial("tcp", p.addr); err == nil {
		_ = c.Close()
		t.Error("new connections are accepted")
	}
	tunneled.send("still")
	tunneled.expect("still")
	close(next)
	testutil.Equal(t, body(t, resp), "done", "the open request's content")
	plain.expectEnd()
	fresh.expectEnd() // long before the drain is over
	select {
	case <-p.done:
		t.Fatal("Serve returned before the tunnel had ended")
	case <-time.After(20 * time.Millisecond):
	}
	_ = tunneled.CloseWrite()
	tunneled.expectEnd()
	p.done <- testutil.Receive(t, "Serve's end", p.done)
}

// Goproxy's tunnels outlive a shutdown.
func TestDrainIsBounded(t *testing.T) {
	target := testutil.Echo(t)
	silent := testutil.Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	ws := upgradeTarget(t, "", func(w *wire) { _, _ = io.Copy(io.Discard, w.r) })
	p := startProxy(t, func(o *Options) { o.Drain = 50 * time.Millisecond })
	tunneled, upgraded, plain, fresh := dialWire(t, p.addr), dialWire(t, p.addr), dialWire(t, p.addr), dialWire(t, p.addr)
	tunneled.tunnelTo(target)
	upgraded.upgrade(ws, "")
	plain.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", silent)
	testutil.Eventually(t, "the plain dial", func() bool { return p.dials.Load() == 2 })
	flood := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
		_, _ = io.Copy(c, zeros{})
	})
	stuck := dialWire(t, p.addr) // never reads
	stuck.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", flood)
	testutil.Must(stuck.r.Peek(1))(t)
	p.end(t)
	for name, w := range map[string]*wire{"tunnel": tunneled, "upgrade": upgraded, "plain": plain, "fresh": fresh} {
		testutil.Equal(t, os.IsTimeout(testutil.Err(io.Copy(io.Discard, w.r))), false, "the %s connection is open", name)
	}
}

// A refusal arrives and ends in order, whatever the client is still sending.
func TestRefusalsArrive(t *testing.T) {
	p := startProxy(t, nil)
	testutil.Each(t, map[string]string{"CONNECT": "CONNECT nowhere HTTP/1.1\r\n\r\n", "garbage": "garbage\r\n\r\n"}, func(t *testing.T, first string) {
		w := dialWire(t, p.addr)
		w.send("%s", first+strings.Repeat("x", 100<<10))
		_ = w.CloseWrite()
		got, err := io.ReadAll(w.r)
		testutil.Holds(t, err == nil && strings.HasPrefix(string(got), "HTTP/1.1 400 "), "%q, %v", got, err)
	})
}

// Clients of other protocols hear at once that they are wrong here, and not
// after the bound for headers.
func TestForeignProtocolsAreTurnedAway(t *testing.T) {
	p := startProxy(t, func(o *Options) { o.handshakeTimeout = time.Hour })
	testutil.Each(t, map[string]string{
		"SOCKS5": "\x05\x01\x00", "SOCKS4": "\x04\x01\x00\x50\x7f\x00\x00\x01\x00", "TLS": "\x16\x03\x01\x02\x00\x01", "not ASCII": "\xff",
	}, func(t *testing.T, first string) {
		w := dialWire(t, p.addr)
		w.send("%s", first)
		testutil.Contains(t, w.answered(400, "status"), "speaks HTTP", "content")
		w.expectEnd()
	})
	t.Run("a real TLS client", func(t *testing.T) {
		_, err := tls.Dial("tcp", p.addr, &tls.Config{ServerName: "localhost"})
		_, ok := errors.AsType[tls.RecordHeaderError](err)
		testutil.Equal(t, ok, true, "what a TLS client is told: %v", err)
	})
}

// Neither credentials nor tokens get into the log, at any level.
func TestLogKeepsSecrets(t *testing.T) {
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	log.SetLevel(logrus.TraceLevel)
	customer, _ := rawOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
	p := startProxy(t, func(o *Options) {
		o.Log = log
		o.Transport.Proxy = fixedProxy("http://user:hunter2@" + customer)
	})
	w := dialWire(t, p.addr)
	w.send("GET http://example.test/?token=hunter2 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer hunter2\r\nProxy-Authorization: Basic hunter2\r\n\r\n")
	_ = w.response("GET")
	w.send("CONNECT nowhere.invalid:1 HTTP/1.1\r\nProxy-Authorization: Basic hunter2\r\n\r\n")
	_ = w.response("GET")
	p.end(t)
	testutil.Equal(t, strings.Contains(out.String(), "hunter2"), false, "a secret is in the log: %s", out.String())
	testutil.Contains(t, out.String(), "destination=\"example.test:80\"", "the log of a request")
}

// By default, a dial that failed is worth a line, and nothing else that clients or destinations do.
func TestLogTellsOfFailedDials(t *testing.T) {
	var out, access bytes.Buffer
	quiet, lines := logrus.New(), logrus.New()
	quiet.SetOutput(&out)
	lines.SetOutput(&access)
	for _, o := range []struct {
		log    *logrus.Logger
		access bool
	}{{quiet, false}, {lines, true}} {
		broken := testutil.Serve(t, func(c *net.TCPConn) {
			w := newWire(t, c)
			w.head()
			_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
		})
		p := startProxy(t, func(opts *Options) {
			opts.Log, opts.AccessLog = o.log, o.access
			opts.Forward = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
				f.Route = tunnel.RouteTunnel
				return dialTCP(ctx, f)
			})
			opts.Forwarder.Dialer = opts.Forward
		})
		for _, request := range []string{"garbage\r\n\r\n", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET http://" + broken + "/ HTTP/1.1\r\nHost: x\r\n\r\n",
			"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: x\r\n\r\n", "CONNECT 127.0.0.1:1 HTTP/1.1\r\n\r\n", "CONNECT x HTTP/1.1\r\n\r\n"} {
			w := dialWire(t, p.addr)
			w.send("%s", request)
			_ = w.CloseWrite()
			_, _ = io.Copy(io.Discard, w.r)
		}
		p.end(t)
	}
	testutil.Equal(t, strings.Count(out.String(), "\n"), 2, "lines by default: %s", out.String())
	for line := range strings.Lines(out.String()) {
		testutil.Contains(t, line, "level=warning", "a line by default")
		testutil.Contains(t, line, `destination="127.0.0.1:1"`, "a line by default")
		testutil.Contains(t, line, "outcome=refused", "a line by default")
		testutil.Contains(t, line, "route=tunnel", "a line by default")
	}
	testutil.Equal(t, strings.Count(access.String(), "request ended"), 5, "lines that tell of requests")
	testutil.Equal(t, strings.Count(access.String(), "level=info"), 5, "lines of the access log at info")
	testutil.Equal(t, strings.Count(access.String(), "\n"), 5, "lines")
	testutil.Contains(t, access.String(), "outcome=refused", "the access log")
}

func TestAccessLog(t *testing.T) {
	var out bytes.Buffer
	log := logrus.New()
	log.SetOutput(&out)
	log.SetFormatter(&logrus.JSONFormatter{})
	target := testutil.Echo(t)
	origin := startOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		_, _ = io.WriteString(w, "hello")
	})
	ws := upgradeTarget(t, "hi", func(*wire) {})
	p := startProxy(t, func(o *Options) { o.Log, o.AccessLog, o.Drain = log, true, maxWait })
	w := dialWire(t, p.addr)
	w.tunnelTo(target)
	w.send("123")
	w.expect("123")
	_ = w.CloseWrite()
	w.expectEnd()
	w = dialWire(t, p.addr)
	w.send("POST http://%s/ HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n1234", origin)
	_ = body(t, w.response("POST"))
	w.upgrade(ws, "")
	w.expect("hi")
	w.expectEnd() // with its target; goproxy leaves the client open
	_ = w.Close()
	p.end(t)
	for _, want := range []string{
		`"bytes_down":3,"bytes_up":3,"client":"127.0.0.1:`, `"destination":"` + target + `","front":"connect","id":"`, `"outcome":"ok"`, `"status":200`,
		`"bytes_down":5,"bytes_up":4`, `"destination":"` + origin + `","front":"forward"`,
		`"bytes_down":2,"bytes_up":0`, `"destination":"` + ws + `","front":"upgrade","id":"`, `"status":101`,
	} {
		testutil.Contains(t, out.String(), want, "the log")
	}
}

// The line about a request costs nothing where nobody reads it.
func TestSilentLineAllocatesNothing(t *testing.T) {
	s := &Server{Shell: &front.Shell[*client]{Options: front.Options{Log: logging.Silent()}}}
	r := &record{kind: kindConnect, flow: &tunnel.Flow{Request: tunnel.Request{ID: "id", Address: "a:1"}}}
	testutil.MaxAllocs(t, 0, func() { s.log(r) })
}

// A connection that has begun its next request is told from those that are idle, which go first.
func TestBegunRequestsAreNotIdle(t *testing.T) {
	p := startProxy(t, nil)
	origin := startOrigin(t, hello)
	w := dialWire(t, p.addr)
	w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", origin)
	_ = body(t, w.response("GET"))
	held := func() int64 { _, bytes := p.Slots.Held(); return bytes }
	testutil.Eventually(t, "an idle connection", func() bool { n, bytes := p.Slots.Held(); return n == 1 && bytes == 0 })
	w.send("GET http://%s/ HTTP/1.1\r\n", origin)
	testutil.Eventually(t, "the weight of a request", func() bool { return held() >= begunBytes })
	w.send("Host: x\r\n\r\n")
	_ = body(t, w.response("GET"))
	testutil.Eventually(t, "an idle connection again", func() bool { n, bytes := p.Slots.Held(); return n == 1 && bytes == 0 })
}
