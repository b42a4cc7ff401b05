package httpsproxy

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"konnectivity/internal/testutil"
)

// fields are n short ones.
func fields(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, "X%d:\r\n", i)
	}
	return b.String()
}

func TestRequestHeadersAreBounded(t *testing.T) {
	origin := startOrigin(t, hello)
	p := startProxy(t, nil)
	for name, tc := range map[string]struct {
		header string
		status int
	}{
		"many fields":     {fields(maxFields-10) + "\r\n", 200},
		"too many fields": {fields(maxFields+1) + "\r\n", 431},
		"a field of 1 MB": {"X: " + strings.Repeat("x", 1<<20), 431},
	} {
		w := dialWire(t, p.addr)
		go func() { _, _ = fmt.Fprintf(w, "GET http://%s/ HTTP/1.1\r\nHost: x\r\n%s", origin, tc.header) }()
		testutil.Equal(t, w.response("GET").StatusCode, tc.status, "%s", name)
	}
}

// What net/http keeps of headers that never end counts: those that have sent most
// go first, be it their first request or a later one.
func TestHalfHeadersWeighWhatTheyCost(t *testing.T) {
	origin := startOrigin(t, hello)
	const each = 900 << 10 // net/http takes more for it
	testutil.Each(t, map[string]string{"first": "", "second": "GET http://" + origin + "/ HTTP/1.1\r\nHost: x\r\n\r\n"}, func(t *testing.T, before string) {
		p := startProxy(t, func(o *Options) { o.handshakeTimeout = 2 * maxWait }) // it is not that which ends them
		genuine := dialWire(t, p.addr)
		genuine.send("GET http://%s/ HTTP/1.1\r\n", origin)
		const most = 32 << 20 / each
		for range most + 10 {
			w := dialWire(t, p.addr)
			if before != "" {
				w.send("%s", before)
				_ = body(t, w.response("GET"))
			}
			w.send("GET http://x.test/ HTTP/1.1\r\nHost: x\r\n%s", fields(8000))
		}
		testutil.Eventually(t, "the end of the first of them, which counts as refused", func() bool {
			return p.Slots.Count() <= most+1 && promtest.ToFloat64(p.Metrics.Refused.WithLabelValues()) >= 10
		})
		_, held := p.Slots.Held()
		testutil.AtMost(t, held, 32<<20, "bytes that are held")
		genuine.send("Host: x\r\n\r\n")
		genuine.answered(200, "a genuine request")
	})
}

// Long headers of requests and of answers share one room, which those that are usual
// do not need. It is free again with the exchange's end, on a connection that goes on
// or not.
func TestHeadersShareARoom(t *testing.T) {
	long := fields(500)
	origin := testutil.Serve(t, func(c *net.TCPConn) {
		b := make([]byte, 64<<10)
		for have := ""; !strings.Contains(have, "\r\n\r\n"); {
			n, err := c.Read(b)
			if err != nil {
				return
			}
			have += string(b[:n])
		}
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n%s\r\n", long) // its content ends with the connection
		_, _ = c.Read(b)
	})
	usual := startOrigin(t, hello)
	get := func(p *proxy, to, header string) (*wire, int) {
		w := dialWire(t, p.addr)
		w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n%s\r\n", to, header)
		return w, w.response("GET").StatusCode
	}
	testutil.Each(t, map[string]string{"of answers": "", "of requests, too": long}, func(t *testing.T, header string) {
		p := startProxy(t, nil)
		empty := p.leaveRoom(1 << 20)
		var open []*wire
		for status := 200; status == 200; {
			var w *wire
			if w, status = get(p, origin, header); status != 200 && status != 503 {
				t.Fatal(status)
			}
			if open = append(open, w); len(open) > 20 {
				t.Fatalf("%d exchanges are served, with %d bytes of headers", len(open), p.headers.Used()-empty)
			}
		}
		_, status := get(p, usual, "")
		testutil.Equal(t, status, 200, "a usual request meanwhile")
		for _, w := range open {
			_ = w.SetLinger(0) // a reset: a FIN alone would be a half-close
			_ = w.Close()
		}
		testutil.Eventually(t, "an empty room", func() bool { return p.headers.Used() == empty })
	})
	p := startProxy(t, nil)
	p.leaveRoom(1 << 20)
	w := dialWire(t, p.addr)
	for range 20 { // one after the other, on one connection
		w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n%s\r\n", usual, long)
		w.answered(200, "status")
	}
}

// A long first line of a request or of an answer counts, as long fields do.
func TestLongFirstLinesCount(t *testing.T) {
	long := strings.Repeat("a", 32<<10)
	testutil.Each(t, map[string][2]string{"target": {"GET http://%s/" + long, "200"}, "method": {long + " http://%s/", "200"}, "status": {"GET http://%s/", "200 " + long}}, func(t *testing.T, lines [2]string) {
		asked := make(chan struct{})
		origin := testutil.Serve(t, func(c *net.TCPConn) {
			_, _ = http.ReadRequest(bufio.NewReaderSize(c, 64<<10))
			_, _ = fmt.Fprintf(c, "HTTP/1.1 %s\r\n\r\nx", lines[1])
			<-asked
		})
		defer close(asked)
		p := startProxy(t, nil)
		w := dialWire(t, p.addr)
		w.send(lines[0]+" HTTP/1.1\r\nHost: x\r\n\r\n", origin)
		status := w.line()
		testutil.Equal(t, strings.HasPrefix(status, "HTTP/1.1 200"), true, "%.100q", status)
		testutil.AtLeast(t, p.headers.Used(), int64(len(long)), "bytes that are counted")
	})
}

// A request that there is no room for counts among those that wait, for as long as net/http
// waits for its content.
func TestRefusedHeadersWait(t *testing.T) {
	p := startProxy(t, nil)
	p.leaveRoom(0)
	w := dialWire(t, p.addr)
	long := fields(500)
	w.send("POST http://x.test/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n%s\r\n", long)
	testutil.Equal(t, w.response("POST").StatusCode, 503, "status")
	_, held := p.Slots.Held()
	testutil.AtLeast(t, held, int64(len(long)), "bytes that are held")
}

// An answer's header counts from its first byte, and one that finds no room is refused before its
// end. A usual one needs none, with content behind it that has many lines.
func TestUnfinishedHeadersCount(t *testing.T) {
	long := fields(2000)
	origin := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\n%s", long)
		_, _ = io.Copy(io.Discard, c)
	})
	lines := strings.Repeat("\n", 4000)
	usual := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n%s", lines)
	})
	p := startProxy(t, nil)
	ask := func(to string) *wire {
		w := dialWire(t, p.addr)
		w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", to)
		return w
	}
	one := ask(origin)
	testutil.Eventually(t, "it is counted", func() bool { return p.headers.Used() > int64(len(long)) })
	empty := p.leaveRoom(0)
	ask(origin).answered(503, "a header that finds no room")
	testutil.Equal(t, ask(usual).answered(200, "a usual header"), lines, "content")
	_ = one.SetLinger(0)
	_ = one.Close()
	testutil.Eventually(t, "an empty room", func() bool { return p.headers.Used() == empty })
}

// leaveRoom takes bytes of the room for headers, so that n bytes are left to exchanges, and
// returns how many bytes it took.
func (p *proxy) leaveRoom(n int64) (taken int64) {
	taken = p.headers.Max() - n
	p.headers.Add(taken)
	return taken
}
