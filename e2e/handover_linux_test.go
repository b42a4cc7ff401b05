package e2e

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"konnectivity/client"
	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Agents are replaced one after the other, each by one that was started beside it: no
// transfer and no probe is lost, and the agent that goes waits for none of them.
func TestConnectionsOutliveTheirAgent(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "handover")
	f := newFleet(t, 2, flags{agent: []string{"--handover-socket=" + socket, "--graceful-shutdown-timeout=60s"}})
	s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), halves, f.ways()...)
	for range scaled(2, 10) {
		before := f.agent
		f.startAgent()
		s.harm()
		began := time.Now()
		stopInOrder(t, before.Process)
		t.Logf("an agent left in %v", time.Since(began).Round(time.Millisecond))
		if !strings.Contains(before.Output(), "handed over the connections of this agent") {
			t.Errorf("it handed nothing over:\n%s", before.Output())
		}
		if took := time.Since(began); took > 20*time.Second {
			t.Errorf("it took %v to leave", took)
		}
		time.Sleep(scaled(500*time.Millisecond, time.Second))
	}
	s.end()
}

// Watches of nodes outlive the agent beside the API server as well, where it hands over.
func TestWatchesOutliveTheAgentBesideTheAPIServer(t *testing.T) {
	n := newNodeOf(t)
	api, conns := watchServer(t, n.api.ca)
	flags := []string{"--agent-id=beside", "--handover-socket=" + filepath.Join(t.TempDir(), "handover"), "--graceful-shutdown-timeout=60s"}
	n.startBeside(t, api, flags...)
	watches := n.watches(t, 8)
	for range scaled(2, 10) {
		before := n.beside
		n.beside = n.agentBeside(t, api, flags...)
		stopInOrder(t, before.Process)
		goOn(t, watches)
	}
	for _, w := range watches {
		w.end(t)
	}
	if conns.Load() != 8 {
		t.Errorf("%d connections were made for 8 watches", conns.Load())
	}
}

// An agent that is killed while it hands over, or takes over, may end connections; but each
// has one owner at every moment: no byte of those that go on is lost, or comes twice.
func TestHandoverIsCutShort(t *testing.T) {
	for round := range scaled(2, 50) {
		for _, victim := range []string{"holder", "successor"} {
			t.Run(fmt.Sprint(victim, round), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, 1, flags{agent: []string{"--agent-id=agent-1", "--handover-socket=" + filepath.Join(t.TempDir(), "handover"), "--graceful-shutdown-timeout=20s"}})
				stop := f.countTo(100)
				holder := f.agent
				f.startAgent()
				victims := map[string]*suite.Agent{"holder": holder, "successor": f.agent}
				_ = holder.Signal(syscall.SIGTERM)
				time.Sleep(rand.N(300 * time.Millisecond))
				victims[victim].Kill()
				time.Sleep(scaled(time.Second, 3*time.Second))
				t.Logf("%d of 100 connections go on", stop())
			})
		}
	}
}

// countTo opens connections on each of which numbers go to the destination and back, in
// order. stop returns how many of them still do that at the end. One that ends may; one that
// brings another number fails the test.
func (f *fleet) countTo(conns int) (stop func() (alive int64)) {
	target := listen(f.t, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	over := make(chan struct{})
	var alive atomic.Int64
	var counting sync.WaitGroup
	for i := range conns {
		c := must(f.ways()[i%2].Dial(within(f.t, patience), tunnel.NewFlow("tcp", target)))(f.t)
		counting.Go(func() {
			defer c.Close()
			var sent, got [8]byte
			for n := uint64(1); ; n++ {
				binary.BigEndian.PutUint64(sent[:], n)
				_ = c.SetDeadline(time.Now().Add(patience))
				if _, err := c.Write(sent[:]); err != nil {
					return
				}
				if _, err := io.ReadFull(c, got[:]); err != nil {
					return
				}
				if got != sent {
					f.t.Errorf("%d came back as %d", n, binary.BigEndian.Uint64(got[:]))
					return
				}
				select {
				case <-over:
					alive.Add(1)
					return
				case <-time.After(time.Millisecond):
				}
			}
		})
	}
	return func() int64 {
		close(over)
		counting.Wait()
		return alive.Load()
	}
}

// Connections that are idle are handed over quickly, however many there are, and what both
// agents need for it stays within the one's memory budget.
func TestManyConnectionsAreHandedOver(t *testing.T) {
	t.Parallel()
	many := scaled(500, 10000)
	f := newFleet(t, 1, flags{agent: []string{"--handover-socket=" + filepath.Join(t.TempDir(), "handover"), "--memory-budget-mib=64"}})
	target := listen(t, func(c *net.TCPConn) {
		_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // without pipes, which are descriptors
	})
	c := must(client.New(client.Options{Address: suite.Loopback(f.servers[0].ClientPort), CAFile: f.PKI("ca.crt"), CertFile: f.PKI("client.crt"), KeyFile: f.PKI("client.key")}))(t)
	defer c.Close()
	open := make([]net.Conn, many)
	for i := range open {
		open[i] = must(c.DialContext(within(t, patience), "tcp", target))(t)
		defer open[i].Close()
	}
	holder := f.agent
	f.startAgent()
	processor := func() (sum time.Duration) {
		for _, a := range []*suite.Agent{holder, f.agent} {
			ran, _, err := a.Processor()
			testutil.NoError(t, err)
			sum += ran
		}
		return sum
	}
	before, ran, began := must(holder.Memory())(t), processor(), time.Now()
	testutil.NoError(t, holder.Signal(syscall.SIGTERM))
	handed := regexp.MustCompile(`"handed over the connections .*"time":"([^"]*)"`)
	testutil.Eventually(t, "all are handed over", func() bool { return handed.MatchString(holder.Output()) })
	ran = processor() - ran
	took := must(time.Parse(time.RFC3339Nano, handed.FindStringSubmatch(holder.Output())[1]))(t).Sub(began)
	must(holder.Wait(patience))(t)
	after := must(f.agent.Memory())(t)
	for _, c := range open {
		_ = c.SetDeadline(time.Now().Add(patience))
		must(io.WriteString(c, "hello"))(t)
		must(io.ReadFull(c, make([]byte, 5)))(t)
	}
	t.Logf("%d connections in %v, and %v of both agents' processor time; the holder had %.1f MiB, its successor has %.1f MiB, at most %.1f MiB",
		many, took.Round(time.Millisecond), ran.Round(time.Millisecond), mib(before.Own), mib(after.Own), mib(after.MostOwn()))
}

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }
