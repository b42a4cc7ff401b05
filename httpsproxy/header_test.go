package httpsproxy

import (
	"fmt"
	"strings"
	"testing"
)

// What a response's header may cost is bounded by its size and by its fields.
func TestResponseHeadersAreBounded(t *testing.T) {
	fields := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "X%d:\r\n", i)
		}
		return b.String()
	}
	for name, c := range map[string]struct {
		header string
		status string
	}{
		"many fields":     {fields(maxFields - 10), " 200 "},
		"too many fields": {fields(maxFields + 1), " 502 "},
		"long":            {"X: " + strings.Repeat("x", maxResponseHeader-100) + "\r\n", " 200 "},
		"too long":        {"X: " + strings.Repeat("x", maxResponseHeader) + "\r\n", " 502 "},
	} {
		t.Run(name, func(t *testing.T) {
			origin, _ := rawOrigin(t, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"+c.header+"\r\n")
			w := dialWire(t, startProxy(t, nil).addr)
			w.send("GET http://%s/ HTTP/1.1\r\nHost: x\r\n\r\n", origin)
			if status, _ := w.head(); !strings.Contains(status, c.status) {
				t.Errorf("%q", status)
			}
		})
	}
}
