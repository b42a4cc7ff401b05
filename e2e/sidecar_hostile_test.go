package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"konnectivity/tunnel"
)

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
				res, err := clientBy(proxy).Get("http://" + d.hosted.ip + ":" + d.web.plain + "/x")
				if err != nil {
					t.Errorf("%s: %v", when, err)
					return
				}
				got, err := readAnswer(res)
				wantHello(t, "x", got, err)
				if took := took(); took > 10*time.Second {
					t.Errorf("%s: it took %v", when, took)
				}
			}
			served("while they come")
			wg.Wait()
			close(conns)
			if len(conns) < clients*9/10 {
				t.Fatalf("only %d of %d could connect", len(conns), clients)
			}
			for range 10 {
				served("while they are there")
			}
			m := must(s.Memory())(t)
			t.Logf("%d half-open handshakes: %d KiB of its own, %d at most", len(conns), m.Own>>10, m.MostOwn()>>10)
			if m.Own > maxOwn {
				t.Errorf("%d KiB of its own, want at most %d", m.Own>>10, maxOwn>>10)
			}
			for c := range conns {
				_ = c.Close()
			}
			served("after they left")
		})
	}
}

// Whatever comes to a port, the process lives and serves the next.
func TestSidecarsSurviveGarbage(t *testing.T) {
	d := newDeployment(t)
	s := both(t, d)
	host := func(name string) string {
		return "\x05\x01\x00\x05\x01\x00\x03" + string([]byte{byte(len(name))}) + name + "\x00\x50"
	}
	lines := []string{
		"", "\x00", "\x04\x01\x00\x50\x7f\x00\x00\x01\x00", "\x05\x00", "\x05\xff" + strings.Repeat("\x00", 255), "\x05\x01\x02",
		host(""), host("a b"), host("a\x00b"), host(strings.Repeat("a", 255)), host("127.0.0.1\x00"), host("..."), host("%00"),
		"\x05\x01\x00\x05\x01\x00\x01\x7f\x00\x00\x01\x00\x00", // port 0
		"\x05\x01\x00\x05\x03\x00\x01\x00\x00\x00\x00\x00\x00", // UDP ASSOCIATE
		"\x05\x01\x00\x05\x02\x00\x01\x00\x00\x00\x00\x00\x00", // BIND
		"\x05\x01\x00\x05\x09\x00\x09\xff",
		"CONNECT  HTTP/1.1\r\n\r\n", "CONNECT a:0 HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT a:65536 HTTP/1.1\r\nHost: a\r\n\r\n",
		"CONNECT a\x00b:80 HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT :80 HTTP/1.1\r\nHost: a\r\n\r\n", "CONNECT a:80:80 HTTP/1.1\r\n\r\n",
		"CONNECT " + strings.Repeat("a", 1<<20), "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET http:/// HTTP/1.1\r\nHost: a\r\n\r\n",
		"GET http://a:99999/ HTTP/1.1\r\nHost: a\r\n\r\n", "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
		"GET http://127.0.0.1:1/ HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\nzz\r\n",
		"GET http://127.0.0.1:1/ HTTP/1.1\r\n" + strings.Repeat("X: "+strings.Repeat("y", 1000)+"\r\n", 2000) + "\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", // a TLS client
	}
	for range 200 {
		b := make([]byte, rand.IntN(300))
		for i := range b {
			b[i] = byte(rand.Int())
		}
		lines = append(lines, []string{"", "\x05", "\x05\x01\x00\x05\x01\x00", "CONNECT ", "GET "}[rand.IntN(5)]+string(b))
	}
	for i, line := range lines {
		c := must(net.Dial("tcp", s.Address()))(t)
		_ = c.SetDeadline(time.Now().Add(patience))
		_, _ = io.WriteString(c, line)
		_ = c.(*net.TCPConn).CloseWrite()
		answer, err := io.ReadAll(io.LimitReader(c, 1<<20))
		if timeout, ok := err.(net.Error); ok && timeout.Timeout() {
			t.Errorf("%d: %.100q is neither answered nor refused: %.100q", i, line, answer)
		}
		if strings.HasPrefix(string(answer), "HTTP/1.1 200") {
			t.Errorf("%d: %.100q: %.100q", i, line, answer)
		}
		c.Close()
	}
	for _, scheme := range []string{"http", "socks5"} {
		res, err := clientBy(scheme + "://" + s.Address()).Get("http://app.guest.test:" + d.web.plain + "/x")
		if err != nil {
			t.Fatal(err)
		}
		got, err := readAnswer(res)
		wantHello(t, "x", got, err)
	}
	select {
	case <-s.Done():
		t.Error("it ended")
	default:
	}
}

// A request for the sidecar itself does not go in circles.
func TestSidecarRefusesToLoop(t *testing.T) {
	d := newDeployment(t)
	s := d.sidecar(t, "konnectivity-https-proxy", d.env, "--direct-suffix=localhost")
	for _, address := range []string{s.Address(), fmt.Sprintf("localhost:%d", s.Port), fmt.Sprintf("[::ffff:127.0.0.1]:%d", s.Port)} {
		_, err := viaConnect("tcp", s.Address(), nil).Dial(within(t, patience), tunnel.NewFlow("tcp", address))
		status, ok := err.(*statusError)
		if !ok || status.status != http.StatusLoopDetected && status.status != http.StatusForbidden {
			t.Errorf("CONNECT %s: %v", address, err)
		}
		if out, err := curl(t, "--proxy", "http://"+s.Address(), "http://"+address+"/"); err == nil {
			t.Errorf("GET %s: %s", address, out)
		}
	}
}
