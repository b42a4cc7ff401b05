package httpsproxy

import (
	"fmt"
	"strings"
	"testing"

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

func TestRequestsHaveFewFields(t *testing.T) {
	origin := startOrigin(t, hello)
	p := startProxy(t, nil)
	for n, want := range map[int]int{maxFields - 10: 200, maxFields + 1: 431} {
		w := dialWire(t, p.addr)
		w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n%s\r\n", origin, fields(n))
		if resp := w.response("GET"); resp.StatusCode != want {
			t.Errorf("%d fields: %s", n, resp.Status)
		}
	}
}

// What net/http keeps of headers that never end counts: those that have sent most
// go first, be it their first request or a later one.
func TestHalfHeadersWeighWhatTheyCost(t *testing.T) {
	origin := startOrigin(t, hello)
	const each = 900 << 10 // net/http takes more for it
	for name, before := range map[string]string{"first": "", "second": "GET http://" + origin + "/ HTTP/1.1\r\nHost: x\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
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
			testutil.Eventually(t, "the end of the first of them", func() bool { return p.Slots.Count() <= most+1 })
			if _, held := p.Slots.Held(); held > 32<<20 {
				t.Errorf("%d bytes are held", held)
			}
			genuine.send("Host: x\r\n\r\n")
			if resp := genuine.response("GET"); resp.StatusCode != 200 {
				t.Error(resp.Status)
			}
		})
	}
}
