package e2e

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"
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
