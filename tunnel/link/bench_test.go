package link_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"runtime"
	"sort"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/yamux"

	"konnectivity/internal/resources"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// mux is one multiplexed connection as both contestants show it.
type mux struct {
	open   func() (net.Conn, error)
	accept func() (net.Conn, error)
}

// contestants build a mux over the two ends of a transport; the yardstick
// stands beside ours in every table.
var contestants = []struct {
	name  string
	build func(testing.TB, net.Conn, net.Conn) mux
}{
	{"link", linkMux},
	{"yamux", yamuxMux},
}

func linkMux(t testing.TB, near, far net.Conn) mux {
	ends := make(hand, 1024)
	if _, ok := near.(*wireEnd); ok { // under TLS it is there already
		near, far = link.Buffered(near), link.Buffered(far)
	}
	a, _ := sessions(t, near, far, link.Config{}, link.Config{Handler: ends})
	return mux{
		open: func() (net.Conn, error) {
			return a.Dial(context.Background(), &tunnel.Flow{Request: tunnel.Request{Network: "tcp", Address: "x:1"}})
		},
		accept: func() (net.Conn, error) {
			select {
			case c := <-ends:
				return c, nil
			case <-a.Done():
				return nil, a.Err()
			}
		},
	}
}

func yamuxMux(t testing.TB, near, far net.Conn) mux {
	cfg := yamux.DefaultConfig()
	cfg.LogOutput = io.Discard
	cfg.MaxStreamWindowSize = 16 << 20 // as large as ours may grow
	a := testutil.Must(yamux.Client(near, cfg))(t)
	b := testutil.Must(yamux.Server(far, cfg))(t)
	t.Cleanup(func() { a.Close(); b.Close() })
	return mux{open: func() (net.Conn, error) { return yamuxDial(a) }, accept: func() (net.Conn, error) { return yamuxAnswer(b) }}
}

// yamuxDial opens a stream as a tunnel over yamux has to: the address goes
// there, the outcome of the dial comes back. A link does that by itself.
func yamuxDial(a *yamux.Session) (net.Conn, error) {
	c, err := a.Open()
	if err != nil {
		return nil, err
	}
	if _, err := c.Write([]byte("x:1\n")); err != nil {
		return nil, err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return c, err
}

func yamuxAnswer(b *yamux.Session) (net.Conn, error) {
	c, err := b.Accept()
	if err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		return nil, err
	}
	_, err = c.Write([]byte{0})
	return c, err
}

// wires are what the contest is held over.
var wires = []struct {
	name string
	pair func(testing.TB) (net.Conn, net.Conn)
}{
	{"tls", tlsPair},
	{"50ms", func(t testing.TB) (net.Conn, net.Conn) { return delayPair(25*time.Millisecond, 0) }},
	{"50ms-stalls", func(t testing.TB) (net.Conn, net.Conn) { return delayPair(25*time.Millisecond, 4<<20) }},
}

func forAll(b *testing.B, run func(b *testing.B, m mux)) {
	for _, wire := range wires {
		for _, c := range contestants {
			b.Run("wire="+wire.name+"/by="+c.name, func(b *testing.B) {
				near, far := wire.pair(b)
				run(b, c.build(b, near, far))
			})
		}
	}
}

// BenchmarkThroughput moves 64 KiB an operation over 1 and over 64 streams.
func BenchmarkThroughput(b *testing.B) {
	for _, streams := range []int{1, 64} {
		b.Run(fmt.Sprintf("streams=%d", streams), func(b *testing.B) {
			forAll(b, func(b *testing.B, m mux) { throughput(b, m, streams) })
		})
	}
}

func throughput(b *testing.B, m mux, streams int) {
	const block = 64 << 10
	writers, readers := make([]net.Conn, streams), make([]net.Conn, streams)
	for i := range streams {
		writers[i], readers[i] = openPair(b, m)
	}
	var left atomic.Int64
	left.Store(int64(b.N))
	b.SetBytes(block)
	b.ReportAllocs()
	cpu := resources.CPUTime()
	b.ResetTimer()
	var wg sync.WaitGroup
	for i := range streams {
		wg.Go(func() {
			buf := make([]byte, block)
			for left.Add(-1) >= 0 {
				if _, err := writers[i].Write(buf); err != nil {
					b.Error(err)
					return
				}
			}
			_ = writers[i].Close()
		})
		wg.Go(func() { _, _ = io.CopyBuffer(onlyWriter{}, onlyReader{readers[i]}, make([]byte, block)) })
	}
	wg.Wait()
	b.StopTimer()
	gb := float64(b.N) * block / 1e9
	b.ReportMetric((resources.CPUTime()-cpu).Seconds()/gb, "cpu-s/GB")
}

// onlyReader and onlyWriter keep io.Copy to the buffer it was given.
type onlyReader struct{ r net.Conn }

func (o onlyReader) Read(p []byte) (int, error) { return o.r.Read(p) }

type onlyWriter struct{}

func (onlyWriter) Write(p []byte) (int, error) { return len(p), nil }

func openPair(b testing.TB, m mux) (net.Conn, net.Conn) {
	b.Helper()
	got, failed := make(chan net.Conn, 1), make(chan error, 1)
	go func() { c, err := m.accept(); failed <- err; got <- c }()
	w := testutil.Must(m.open())(b)
	testutil.NoError(b, <-failed)
	return w, <-got
}

// BenchmarkChurn opens a stream, sends 100 bytes, reads 100 back and closes.
func BenchmarkChurn(b *testing.B) {
	forAll(b, func(b *testing.B, m mux) {
		go func() {
			for {
				c, err := m.accept()
				if err != nil {
					return
				}
				go func() {
					buf := make([]byte, 100)
					if _, err := io.ReadFull(c, buf); err == nil {
						_, _ = c.Write(buf)
					}
					_ = c.Close()
				}()
			}
		}()
		b.SetParallelism(8)
		b.ReportAllocs()
		b.RunParallel(func(pb *testing.PB) {
			buf := make([]byte, 100)
			for pb.Next() {
				c, err := m.open()
				if err != nil {
					b.Error(err)
					return
				}
				_, _ = c.Write(buf)
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Error(err)
				}
				_ = c.Close()
			}
		})
	})
}

// BenchmarkRoundTrip is 64 bytes there and back on one stream, alone and
// beside 8 bulk streams.
func BenchmarkRoundTrip(b *testing.B) {
	for _, bulk := range []int{0, 8} {
		b.Run(fmt.Sprintf("bulk=%d", bulk), func(b *testing.B) {
			forAll(b, func(b *testing.B, m mux) { roundTrip(b, m, bulk) })
		})
	}
}

func roundTrip(b *testing.B, m mux, bulk int) {
	for range bulk {
		w, r := openPair(b, m)
		go func() { _, _ = io.Copy(io.Discard, r) }()
		go func() {
			buf := make([]byte, 64<<10)
			for {
				if _, err := w.Write(buf); err != nil {
					return
				}
			}
		}()
		b.Cleanup(func() { w.Close(); r.Close() })
	}
	w, r := openPair(b, m)
	go func() {
		buf := make([]byte, 64)
		for {
			if _, err := io.ReadFull(r, buf); err != nil {
				return
			}
			_, _ = r.Write(buf)
		}
	}()
	took := make([]time.Duration, 0, b.N)
	buf := make([]byte, 64)
	for b.Loop() {
		start := time.Now()
		_, _ = w.Write(buf)
		testutil.NoError(b, testutil.Err(io.ReadFull(w, buf)))
		took = append(took, time.Since(start))
	}
	w.Close()
	sort.Slice(took, func(i, j int) bool { return took[i] < took[j] })
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
}

// BenchmarkIdle reports the memory of an idle stream, both ends together.
func BenchmarkIdle(b *testing.B) {
	for _, c := range contestants {
		b.Run("by="+c.name, func(b *testing.B) {
			near, far := tlsPair(b)
			m := c.build(b, near, far)
			for b.Loop() {
				const streams = 2000
				before := memory()
				conns := make([]net.Conn, 0, 2*streams)
				for range streams {
					w, r := openPair(b, m)
					conns = append(conns, w, r)
				}
				b.ReportMetric(float64(memory()-before)/streams, "B/stream")
				for _, c := range conns {
					c.Close()
				}
			}
		})
	}
}

func memory() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapInuse + s.StackInuse)
}
