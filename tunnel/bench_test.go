package tunnel_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"

	"konnectivity/internal/resources"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// joins are ways to join two TCP connections, both ways, until they end. A
// relay of the suite has TLS on one side at least, so io.Copy with a buffer is
// the one to compare with; between two TCP connections io.Copy has the kernel
// splice them.
var joins = []struct {
	name string
	join func(a, b *net.TCPConn)
}{
	{"relay", func(a, b *net.TCPConn) {
		_ = (&tunnel.Relay{A: tunnel.Wrap(a), B: tunnel.Wrap(b), Flow: counted(new(tunnel.Totals))}).Run(context.Background())
	}},
	{"io.Copy", func(a, b *net.TCPConn) {
		copyBoth(a, b, func(dst, src *net.TCPConn) {
			_, _ = io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, 64<<10))
		})
	}},
	{"splice", func(a, b *net.TCPConn) {
		copyBoth(a, b, func(dst, src *net.TCPConn) { _, _ = io.Copy(dst, src) })
	}},
}

func copyBoth(a, b *net.TCPConn, copyTo func(dst, src *net.TCPConn)) {
	var wg sync.WaitGroup
	for _, d := range [][2]*net.TCPConn{{a, b}, {b, a}} {
		wg.Go(func() {
			copyTo(d[0], d[1])
			_ = d[0].CloseWrite()
		})
	}
	wg.Wait()
	_ = a.Close()
	_ = b.Close()
}

// joined returns the outer ends of two connections that are joined.
func joined(b *testing.B, join func(a, b *net.TCPConn)) (client, target *net.TCPConn) {
	client, near := testutil.Pair(b)
	far, target := testutil.Pair(b)
	done := make(chan struct{})
	go func() { defer close(done); join(near, far) }()
	b.Cleanup(func() {
		_ = client.Close()
		_ = target.Close()
		<-done
	})
	return client, target
}

// BenchmarkRelay moves 64 KiB an operation one way.
func BenchmarkRelay(b *testing.B) {
	const block = 64 << 10
	for _, j := range joins {
		b.Run("by="+j.name, func(b *testing.B) {
			client, target := joined(b, j.join)
			b.SetBytes(block)
			b.ReportAllocs()
			cpu := resources.CPUTime()
			b.ResetTimer()
			go func() {
				buf := make([]byte, block)
				for range b.N {
					if _, err := client.Write(buf); err != nil {
						return
					}
				}
			}()
			buf := make([]byte, block)
			for range b.N {
				testutil.NoError(b, testutil.Err(io.ReadFull(target, buf)))
			}
			b.StopTimer()
			b.ReportMetric((resources.CPUTime()-cpu).Seconds()/(float64(b.N)*block/1e9), "cpu-s/GB")
		})
	}
}

// BenchmarkRelayMessage passes a message there and back an operation.
func BenchmarkRelayMessage(b *testing.B) {
	for _, size := range []int{64, 4096} {
		for _, j := range joins {
			b.Run(fmt.Sprintf("size=%d/by=%s", size, j.name), func(b *testing.B) {
				client, target := joined(b, j.join)
				there, back := make([]byte, size), make([]byte, size)
				b.ReportAllocs()
				for b.Loop() {
					exchange(b, client, target, there, back)
					exchange(b, target, client, there, back)
				}
			})
		}
	}
}
