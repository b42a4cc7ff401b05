package e2e

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/net/proxy"

	"konnectivity/e2e/suite"
)

// transferRate bounds each direction of a transfer, so that it lasts as long as
// what is to befall it.
const transferRate = 4 << 20

// hashes is a destination that reads to the end of what comes, and answers with
// its hash and as many bytes of its own.
func hashes(t *testing.T) (address string) {
	t.Helper()
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	var work sync.WaitGroup
	work.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			work.Go(func() {
				defer c.Close()
				sum := sha256.New()
				n, err := io.Copy(sum, c)
				if err != nil {
					return
				}
				_, _ = c.Write(sum.Sum(nil))
				_, _ = io.Copy(c, paced(rand.NewChaCha8([32]byte{9}), n))
			})
		}
	})
	t.Cleanup(func() { l.Close(); work.Wait() })
	return l.Addr().String()
}

// paced reads n bytes of r, no faster than transferRate.
func paced(r io.Reader, n int64) io.Reader {
	return &pacedReader{r: io.LimitReader(r, n), began: time.Now()}
}

type pacedReader struct {
	r     io.Reader
	began time.Time
	read  int64
}

func (p *pacedReader) Read(b []byte) (int, error) {
	due := time.Duration(p.read) * time.Second / transferRate
	time.Sleep(due - time.Since(p.began))
	n, err := p.r.Read(b)
	p.read += int64(n)
	return n, err
}

// transfer sends size bytes both ways, one after the other, and looks at each.
func transfer(socks, to string, size int64, seed byte) error {
	dialer, err := proxy.SOCKS5("tcp", socks, nil, nil)
	if err != nil {
		return err
	}
	c, err := dialer.Dial("tcp", to)
	if err != nil {
		return err
	}
	defer c.Close()
	sent := sha256.New()
	if _, err := io.Copy(io.MultiWriter(c, sent), paced(rand.NewChaCha8([32]byte{seed}), size)); err != nil {
		return fmt.Errorf("sending: %w", err)
	}
	if err := c.(interface{ CloseWrite() error }).CloseWrite(); err != nil {
		return err
	}
	var sum [32]byte
	if _, err := io.ReadFull(c, sum[:]); err != nil {
		return fmt.Errorf("the hash: %w", err)
	}
	if sum != [32]byte(sent.Sum(nil)) {
		return errors.New("other bytes arrived")
	}
	want, got := sha256.New(), sha256.New()
	_, _ = io.CopyN(want, rand.NewChaCha8([32]byte{9}), size)
	if n, err := io.Copy(got, c); err != nil || n != size {
		return fmt.Errorf("received %d of %d bytes: %w", n, size, err)
	}
	if [32]byte(got.Sum(nil)) != [32]byte(want.Sum(nil)) {
		return errors.New("other bytes came back")
	}
	return nil
}

// transfers runs n of them while harm is done, time and again, until all have
// ended. None may fail.
func transfers(t *testing.T, socks, to string, n int, size int64, harm func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var running, harming sync.WaitGroup
	failed := atomic.Int64{}
	for i := range n {
		running.Go(func() {
			if err := transfer(socks, to, size, byte(i)); err != nil {
				failed.Add(1)
				t.Errorf("transfer %d: %v", i, err)
			}
		})
	}
	harming.Go(func() {
		time.Sleep(time.Second) // all are connected
		for ctx.Err() == nil {
			harm(ctx)
		}
	})
	running.Wait()
	cancel()
	harming.Wait()
	t.Logf("%d transfers of %d bytes each way, %d failed", n, size, failed.Load())
}

// pause waits, unless it is over before.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// TestConnectionsOutliveLinks cuts the links of either leg, time and again.
func TestConnectionsOutliveLinks(t *testing.T) {
	s := newSuite(t)
	srv := must(s.StartServer())(t)
	toClients, toAgents := newBalancer(t, clientSide(srv)...), newBalancer(t, agentSide(srv)...)
	agent := must(s.StartAgent(toAgents.front()))(t)
	connected(t, agent, 1, 20*time.Second)
	socks := must(s.StartSOCKS5(toClients.front()))(t)
	cuts := 0
	transfers(t, socks.Address(), hashes(t), scaled(16, 40), scaled[int64](16<<20, 64<<20), func(ctx context.Context) {
		pause(ctx, rand.N(200*time.Millisecond))
		if cuts++; cuts%2 == 0 {
			toClients.cut()
		} else {
			toAgents.cut()
		}
		pause(ctx, 200*time.Millisecond)
	})
	t.Logf("%d cuts", cuts)
}

// TestConnectionsOutliveServers kills three servers in turn while two serve.
func TestConnectionsOutliveServers(t *testing.T) {
	s := newSuite(t)
	var servers []*suite.Server
	for range 3 {
		servers = append(servers, must(s.StartServer("--server-count=3"))(t))
	}
	toClients := newBalancer(t, clientSide(servers...)...)
	var others []string
	for _, srv := range servers[1:] {
		others = append(others, suite.Loopback(srv.AgentPort))
	}
	agent := must(s.StartAgent(servers[0], "--proxy-server-host="+strings.Join(others, ",")))(t)
	connected(t, agent, 3, 20*time.Second)
	socks := must(s.StartSOCKS5(toClients.front()))(t)
	kills := 0
	transfers(t, socks.Address(), hashes(t), scaled(16, 40), scaled[int64](24<<20, 120<<20), func(ctx context.Context) {
		srv := servers[kills%3]
		kills++
		srv.Process.Kill()
		toClients.restarted(srv.ClientPort)
		if err := s.RunServer(srv, "--server-count=3"); err != nil {
			t.Error(err)
		}
		pause(ctx, 2*time.Second)
	})
	t.Logf("%d servers were killed", kills)
}

// TestConnectionsMoveBeforeAServerLeaves replaces servers in order: none waits
// for the transfers on it.
func TestConnectionsMoveBeforeAServerLeaves(t *testing.T) {
	s := newSuite(t)
	a, b := must(s.StartServer("--server-count=2"))(t), must(s.StartServer("--server-count=2"))(t)
	toClients := newBalancer(t, clientSide(a, b)...)
	agent := must(s.StartAgent(a, "--proxy-server-host="+suite.Loopback(b.AgentPort)))(t)
	connected(t, agent, 2, 20*time.Second)
	socks := must(s.StartSOCKS5(toClients.front()))(t)
	round := 0
	transfers(t, socks.Address(), hashes(t), scaled(8, 40), scaled[int64](24<<20, 120<<20), func(ctx context.Context) {
		srv := []*suite.Server{a, b}[round%2]
		round++
		began := time.Now()
		stopInOrder(t, srv.Process)
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("a server with open connections took %v to leave", took)
		} else {
			t.Logf("a server left in %v", took)
		}
		toClients.restarted(srv.ClientPort)
		if err := s.RunServer(srv, "--server-count=2"); err != nil {
			t.Error(err)
		}
		connected(t, agent, 2, 15*time.Second)
		pause(ctx, time.Second)
	})
}
