package link_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"konnectivity/tunnel"
)

// pipeline is client TCP → link → link → target TCP, every join a Relay: what
// a sidecar, a server and an agent make of one connection.
type pipeline struct {
	t      *testing.T
	chain  *chain
	front  net.Listener
	target net.Listener
	relays sync.WaitGroup
}

func newPipeline(t *testing.T) *pipeline {
	noLeaks(t)
	p := &pipeline{t: t, chain: newChain(t)}
	for _, l := range []*net.Listener{&p.front, &p.target} {
		var err error
		if *l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			t.Fatal(err)
		}
	}
	p.relays.Go(func() {
		for {
			conn, err := p.front.Accept()
			if err != nil {
				return
			}
			p.relays.Go(func() { p.carry(tunnel.Wrap(conn)) })
		}
	})
	return p
}

// carry is what a sidecar does.
func (p *pipeline) carry(client tunnel.Conn) {
	serve := &tunnel.Forwarder{Dialer: p.chain.client.Load(), Bounds: tunnel.Bounds{Linger: patience}}
	req := &tunnel.Flow{Request: tunnel.Request{Network: "tcp", Address: p.target.Addr().String()}}
	_ = serve.Forward(context.Background(), req, func(_ tunnel.Conn, err error) (tunnel.Conn, error) {
		if err != nil {
			_ = client.Reset(err)
		}
		return client, err
	})
}

// pair is one connection's outer ends.
func (p *pipeline) pair() (client, target *net.TCPConn) {
	p.t.Helper()
	a, err := net.Dial("tcp", p.front.Addr().String())
	if err != nil {
		p.t.Fatal(err)
	}
	b, err := p.target.Accept()
	if err != nil {
		p.t.Fatal(err)
	}
	for _, c := range []net.Conn{a, b} {
		_ = c.SetDeadline(time.Now().Add(patience))
		p.t.Cleanup(func() { _ = c.Close() })
	}
	return a.(*net.TCPConn), b.(*net.TCPConn)
}

// end expects every relay to have ended by itself before the links are closed.
func (p *pipeline) end() {
	p.t.Helper()
	_ = p.front.Close()
	done := make(chan struct{})
	go func() { defer close(done); p.relays.Wait() }()
	select {
	case <-done:
	case <-time.After(patience):
		p.t.Error("a relay does not end")
	}
	for _, ses := range p.chain.sessions {
		eventually(p.t, "no streams", func() bool { return ses.Streams() == 0 })
	}
	p.chain.end()
	_ = p.target.Close()
}

// bothEnds runs f with the ends in either order.
func bothEnds(t *testing.T, f func(t *testing.T, p *pipeline, near, far *net.TCPConn)) {
	for _, name := range []string{"client", "target"} {
		t.Run(name, func(t *testing.T) {
			p := newPipeline(t)
			near, far := p.pair()
			if name == "target" {
				near, far = far, near
			}
			f(t, p, near, far)
			p.end()
		})
	}
}

// send writes n bytes in pieces of all sizes, then FIN; it returns their hash.
func send(c *net.TCPConn, n int, seed uint64) (sum [32]byte, err error) {
	rnd, h := rand.New(rand.NewPCG(seed, 1)), sha256.New()
	buf := make([]byte, 100<<10)
	for i := range buf {
		buf[i] = byte(rnd.Uint32())
	}
	for n > 0 {
		from := rnd.IntN(len(buf) / 2)
		piece := buf[from:][:min(n, 1+rnd.IntN(1<<uint(rnd.IntN(16))))]
		if _, err := c.Write(piece); err != nil {
			return sum, err
		}
		h.Write(piece)
		n -= len(piece)
	}
	return [32]byte(h.Sum(nil)), c.CloseWrite()
}

// exchange has both ends send at once, to their ends, and compares.
func exchange(t *testing.T, near, far *net.TCPConn, n int) {
	t.Helper()
	var wg sync.WaitGroup
	for i, pair := range [][2]*net.TCPConn{{near, far}, {far, near}} {
		sums := make(chan [32]byte, 1)
		wg.Go(func() {
			sum, err := send(pair[0], n, uint64(i))
			if err != nil {
				t.Errorf("direction %d: %v", i, err)
			}
			sums <- sum
		})
		wg.Go(func() {
			h := sha256.New()
			got, err := io.Copy(h, pair[1])
			if want := <-sums; err != nil || got != int64(n) || [32]byte(h.Sum(nil)) != want {
				t.Errorf("direction %d: %d of %d bytes came, or others: %v", i, got, n, err)
			}
		})
	}
	wg.Wait()
}

func TestPipelineBothWays(t *testing.T) {
	p := newPipeline(t)
	var wg sync.WaitGroup
	for range 4 {
		near, far := p.pair()
		wg.Go(func() { exchange(t, near, far, 2<<20) })
	}
	wg.Wait()
	p.end()
}

// The end that stops first still gets a long answer.
func TestPipelineHalfClose(t *testing.T) {
	bothEnds(t, func(t *testing.T, p *pipeline, near, far *net.TCPConn) {
		for _, n := range []int{0, 300 << 10} { // one way, then the other
			sum, err := send(near, n, 7)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(far)
			if err != nil || sha256.Sum256(got) != sum && n > 0 {
				t.Fatalf("%d of %d bytes, %v", len(got), n, err)
			}
			near, far = far, near
		}
	})
}

// A reset arrives, behind bytes that were sent well before it.
func TestPipelineReset(t *testing.T) {
	bothEnds(t, func(t *testing.T, p *pipeline, near, far *net.TCPConn) {
		if _, err := near.Write([]byte("last words")); err != nil {
			t.Fatal(err)
		}
		var got [10]byte
		if _, err := io.ReadFull(far, got[:]); err != nil {
			t.Fatal(err)
		}
		_ = near.SetLinger(0)
		_ = near.Close()
		if n, err := far.Read(got[:]); err == nil || err == io.EOF || !isReset(err) {
			t.Errorf("read %d, %v; want a reset", n, err)
		}
	})
}

// A reset also ends a connection whose directions are both full.
func TestPipelineResetUnderLoad(t *testing.T) {
	bothEnds(t, func(t *testing.T, p *pipeline, near, far *net.TCPConn) {
		var wg sync.WaitGroup
		for _, c := range []*net.TCPConn{near, far} {
			wg.Go(func() { writeOn(c) })
			wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
		}
		time.Sleep(20 * time.Millisecond)
		_ = near.SetLinger(0)
		_ = near.Close()
		wg.Wait() // far's end is that of its deadline, or a reset
		if err := far.SetDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := far.Write([]byte{1}); err == nil || !isReset(err) {
			t.Errorf("after the reset a write gives %v", err)
		}
	})
}

// Small messages go back and forth beside bulk, and while one reader sleeps.
func TestPipelineSmallBesideBulk(t *testing.T) {
	p := newPipeline(t)
	var wg sync.WaitGroup
	slowNear, slowFar := p.pair()
	sums := make(chan [32]byte, 1)
	wg.Go(func() {
		sum, err := send(slowNear, 3<<20, 3)
		if err != nil {
			t.Error(err)
		}
		sums <- sum
	})
	bulkNear, bulkFar := p.pair()
	wg.Go(func() { exchange(t, bulkNear, bulkFar, 4<<20) })
	near, far := p.pair()
	wg.Go(func() { _, _ = io.Copy(far, far); _ = far.CloseWrite() })
	for i := range 200 {
		message := bytes.Repeat([]byte{byte(i)}, 1+i*40)
		if _, err := near.Write(message); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(message))
		if _, err := io.ReadFull(near, got); err != nil || !bytes.Equal(got, message) {
			t.Fatalf("message %d: %v", i, err)
		}
	}
	_ = near.CloseWrite()
	h := sha256.New() // the slow reader wakes up
	if _, err := io.Copy(h, slowFar); err != nil || [32]byte(h.Sum(nil)) != <-sums {
		t.Errorf("the slow reader got other bytes: %v", err)
	}
	_, _ = slowFar.Close(), slowNear.Close()
	wg.Wait()
	p.end()
}

// When either link dies, both ends of every connection are reset, whatever
// they were doing: bulk, idle, or a reader that stalls.
func TestPipelineLinkDeath(t *testing.T) {
	for victim, name := range []string{"client's link", "agent's link"} {
		t.Run(name, func(t *testing.T) {
			p := newPipeline(t)
			var wg sync.WaitGroup
			bulkNear, bulkFar := p.pair()
			for _, c := range []*net.TCPConn{bulkNear, bulkFar} {
				wg.Go(func() { writeOn(c) })
				wg.Go(func() { _, _ = io.Copy(io.Discard, c) })
			}
			stallNear, stallFar := p.pair()
			wg.Go(func() { writeOn(stallNear) })
			idleNear, idleFar := p.pair()
			time.Sleep(30 * time.Millisecond)
			_ = p.chain.conns[2*victim].Close()
			for _, c := range []*net.TCPConn{idleNear, idleFar} {
				if _, err := c.Read(make([]byte, 1)); !isReset(err) {
					t.Errorf("an idle end sees %v", err)
				}
			}
			if _, err := io.Copy(io.Discard, stallFar); !isReset(err) {
				t.Errorf("the end that stalled sees %v", err)
			}
			wg.Wait()
			p.end()
		})
	}
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
