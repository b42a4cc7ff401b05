package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A destination may send what it likes for as long as it likes: it costs its own
// connection and at most 1 MiB of the sidecar, and the client is not sent more
// than was sent to the sidecar.
func TestHostileDestinations(t *testing.T) {
	w := newSuite(t)
	srv := must(w.StartServer())(t)
	must(w.StartAgent(srv))(t)
	var short strings.Builder // fields, as many as bytes can be
	for i := range 1 << 14 {
		fmt.Fprintf(&short, "%x:\r\n", 0x1000+i)
	}
	fields := short.String()
	filler := strings.Repeat("x", 64<<10)
	for name, attack := range map[string]struct{ first, again string }{
		"interim responses": {"", "HTTP/1.1 103 Early Hints\r\n" + fields[:len("1000:\r\n")*800] + "\r\n"},
		"header fields":     {"HTTP/1.1 200 OK\r\n" + fields[:63<<10/7*7] + "\r\n", ""},
		"endless header":    {"HTTP/1.1 200 OK\r\n", fields},
		"endless line":      {"HTTP/1.1 200 OK\r\nX: ", filler},
		"endless status":    {"HTTP/1.1 200 ", filler},
		"endless trailers":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", fields},
		"chunk extension":   {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;", filler},
		"chunk extensions":  {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", "1;" + filler[:3000] + "\r\nx\r\n"},
		"garbage upgrade":   {"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n" + fields[:7*1000], ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := must(w.StartHTTPS(srv))(t)
			defer p.Kill()
			origin := newHostileOrigin(t, attack.first, attack.again)
			ask := func() { // until the end of the answer
				c := must(net.Dial("tcp", p.Address()))(t)
				defer c.Close()
				_ = c.SetDeadline(time.Now().Add(patience))
				fmt.Fprintf(c, "GET http://%s/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, close\r\nUpgrade: x\r\n\r\n", origin)
				n, err := io.Copy(io.Discard, c)
				if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
					t.Error("the exchange does not end")
				}
				if n > 1<<20 {
					t.Errorf("the client got %d bytes", n)
				}
			}
			ask() // fills pools
			idle := must(p.Memory())(t).MostOwn()
			const destinations = 16
			const slack = 4 << 20 // what the collector lets garbage be
			var all sync.WaitGroup
			for range destinations {
				all.Go(ask)
			}
			all.Wait()
			grown := must(p.Memory())(t).MostOwn() - idle
			t.Logf("%d destinations: %d KiB on top of %d", destinations, grown>>10, idle>>10)
			if grown > destinations<<20+slack {
				t.Errorf("%d destinations cost %d KiB", destinations, grown>>10)
			}
		})
	}
}

// newHostileOrigin answers each request with first, and then again and again.
func newHostileOrigin(t *testing.T, first, again string) (address string) {
	return testutil.Serve(t, func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
			return
		}
		_, err := io.WriteString(c, first)
		for err == nil && again != "" {
			_, err = io.WriteString(c, again)
		}
	})
}
