package httpsproxy

import (
	"fmt"
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
			testutil.Eventually(t, "the end of the first of them, which counts as refused", func() bool {
				return p.Slots.Count() <= most+1 && promtest.ToFloat64(p.Metrics.Refused.WithLabelValues()) >= 10
			})
			_, held := p.Slots.Held()
			testutil.AtMost(t, held, 32<<20, "bytes that are held")
			genuine.send("Host: x\r\n\r\n")
			genuine.answered(200, "a genuine request")
		})
	}
}
