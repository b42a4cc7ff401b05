package httpsproxy

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

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
	for name, header := range map[string]string{"of answers": "", "of requests, too": long} {
		t.Run(name, func(t *testing.T) {
			p := startProxy(t, nil)
			p.headers.max = 1 << 20
			var open []*wire
			for status := 200; status == 200; {
				var w *wire
				if w, status = get(p, origin, header); status != 200 && status != 503 {
					t.Fatal(status)
				}
				if open = append(open, w); len(open) > 20 {
					t.Fatalf("%d exchanges are served, with %d bytes of headers", len(open), p.headers.used.Load())
				}
			}
			if _, status := get(p, usual, ""); status != 200 {
				t.Errorf("a usual request meanwhile: %d", status)
			}
			for _, w := range open {
				_ = w.SetLinger(0) // a reset, so that nobody takes it for a half-close
				_ = w.Close()
			}
			testutil.Eventually(t, "an empty room", func() bool { return p.headers.used.Load() == 0 })
		})
	}
	p := startProxy(t, nil)
	p.headers.max = 1 << 20
	w := dialWire(t, p.addr)
	for range 20 { // one after the other, on one connection
		w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n%s\r\n", usual, long)
		if resp := w.response("GET"); resp.StatusCode != 200 {
			t.Fatal(resp.Status)
		} else {
			_ = body(t, resp)
		}
	}
}
