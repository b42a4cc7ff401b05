package httpsproxy

import (
	"io"
	"net"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

const benchChunk = 256 << 10

// BenchmarkConnect is a download through CONNECT beside one through a bare
// relay of the tunnel package: what this front costs once a tunnel is open.
func BenchmarkConnect(b *testing.B) {
	source := testutil.Serve(b, func(c *net.TCPConn) {
		block := make([]byte, benchChunk)
		for {
			if _, err := c.Write(block); err != nil {
				return
			}
		}
	})
	b.Run("relay", func(b *testing.B) {
		relay := testutil.Serve(b, func(c *net.TCPConn) {
			far, err := dialTCP(b.Context(), tunnel.NewFlow("tcp", source))
			if err != nil {
				return
			}
			_ = (&tunnel.Relay{A: tunnel.Wrap(c), B: far}).Run(b.Context())
		})
		download(b, dialBench(b, relay))
	})
	b.Run("proxy", func(b *testing.B) {
		p := startProxy(b, nil)
		w := dialWire(b, p.addr)
		w.tunnelTo(source)
		_ = w.SetDeadline(noDeadline)
		download(b, w.r)
	})
}

// BenchmarkRequest is one small plain request at a time on kept connections.
func BenchmarkRequest(b *testing.B) {
	origin := startOrigin(b, hello)
	p := startProxy(b, nil)
	w := dialWire(b, p.addr)
	_ = w.SetDeadline(noDeadline)
	for b.Loop() {
		_ = body(b, w.get("http://"+origin+"/"))
	}
}

func dialBench(b *testing.B, addr string) net.Conn {
	c := testutil.Must(net.Dial("tcp", addr))(b)
	b.Cleanup(func() { _ = c.Close() })
	return c
}

func download(b *testing.B, from io.Reader) {
	b.SetBytes(benchChunk)
	buf := make([]byte, benchChunk)
	for b.Loop() {
		testutil.NoError(b, testutil.Err(io.ReadFull(from, buf)))
	}
}
