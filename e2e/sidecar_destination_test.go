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
				timeout, ok := err.(net.Error)
				testutil.Holds(t, !ok || !timeout.Timeout(), "the exchange does not end")
				testutil.AtMost(t, n, 1<<20, "bytes that the client got")
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
			testutil.AtMost(t, grown, destinations<<20+slack, "bytes that %d destinations cost", destinations)
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

// Ten thousand clients that begin and do not go on: those who want something
// are served all the while, memory stays within a bound, and the ten thousand
// are gone when their time is over.
func TestSidecarsBoundHalfOpenHandshakes(t *testing.T) {
	d := newDeployment(t)
	for program, first := range map[string]string{
		"konnectivity-socks5-proxy": "\x05\x02\x00",
		"konnectivity-https-proxy":  "CONNECT app.guest.test:443 HTTP/1.1\r\nHost: ap",
	} {
		t.Run(program, func(t *testing.T) {
			s := d.sidecar(t, program, d.env)
			const clients = 10_000
			// 53 MiB for 10,000 of SOCKS5, and for the 4,096 that HTTP keeps.
			const maxOwn = 100 << 20
			conns := make(chan net.Conn, clients)
			var wg sync.WaitGroup
			for range 50 {
				wg.Go(func() {
					for range clients / 50 {
						if c, err := net.Dial("tcp", s.Address()); err == nil {
							_, _ = io.WriteString(c, first)
							conns <- c
						}
					}
				})
			}
			proxy := "socks5://" + s.Address()
			if program == "konnectivity-https-proxy" {
				proxy = "http://" + s.Address()
			}
			served := func(when string) {
				took := stopwatch(d.Suite)
				got, err := getBy(proxy, "http://"+d.hosted.ip+":"+d.web.plain+"/x")
				testutil.Succeeds(t, err, "%s", when)
				wantHello(t, "x", got)
				testutil.AtMost(t, took(), 10*time.Second, "%s: the time it took", when)
			}
			served("while they come")
			wg.Wait()
			close(conns)
			testutil.Requires(t, len(conns) >= clients*9/10,
				"only %d of %d could connect", len(conns), clients)
			for range 10 {
				served("while they are there")
			}
			m := must(s.Memory())(t)
			t.Logf("%d half-open handshakes: %d KiB of its own, %d at most", len(conns), m.Own>>10, m.MostOwn()>>10)
			testutil.AtMost(t, m.Own, maxOwn, "bytes of its own")
			for c := range conns {
				_ = c.Close()
			}
			served("after they left")
		})
	}
}
