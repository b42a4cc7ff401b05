package e2e

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
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
	f := newFleet(t, 2, flags{agent: []string{"--handover-socket=" + socket, "--graceful-shutdown-timeout=10m"}})
	idle := f.openEchoes(scaled(100, 2000))
	s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), halves, f.ways()...)
	for range scaled(2, 10) {
		before := f.agent
		f.startAgent()
		s.harm()
		began := time.Now()
		stopInOrder(t, before.Process)
		t.Logf("an agent left in %v", time.Since(began).Round(time.Millisecond))
		testutil.Contains(t, before.Output(), "handed over the connections of this agent", "what it says")
		testutil.AtMost(t, time.Since(began), patience, "the time it took to leave") // 10 minutes are granted
		time.Sleep(scaled(500*time.Millisecond, time.Second))
	}
	s.end()
	idle.check(t)
}

// An agent that was killed, and is started again in its place, is known by its id although it was
// given none: its connections are reset soon, not after the window.
func TestAKilledAgentIsKnownAgain(t *testing.T) {
	t.Parallel()
	long := []string{"--resume-window=10m"}
	f := newFleet(t, 1, flags{server: long, agent: long, sidecars: long})
	near, got := dialed(t, viaSOCKS5(f.socks.Address()), testutil.Echo(t)), make([]byte, 1)
	must(near.Write([]byte("x")))(t)
	must(io.ReadFull(near, got))(t)
	args := strings.Split(strings.TrimRight(string(must(os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", f.agent.PID())))(t)), "\x00"), "\x00")
	f.agent.Kill()
	must(f.Run("konnectivity-agent", nil, args[1:]...))(t)
	_ = near.SetReadDeadline(time.Now().Add(2 * patience))
	testutil.ErrorIs(t, testutil.Err(near.Read(got)), syscall.ECONNRESET, "a connection of the agent that was killed")
}

// Connections of nodes outlive the agent beside the API server as well, where it hands over.
func TestTransfersOfNodesOutliveTheAgentBesideTheAPIServer(t *testing.T) {
	t.Parallel() // it waits
	n, v := newNodeOf(t), newVault(t)
	flags := []string{"--agent-id=beside", "--handover-socket=" + filepath.Join(t.TempDir(), "handover"), "--graceful-shutdown-timeout=10m"}
	n.startBeside(t, v.address, flags...)
	s := startStorm(t, v, scaled(6*time.Second, 30*time.Second), halves, viaNode(n.port))
	for range scaled(2, 10) {
		before := n.beside
		n.beside = n.agentBeside(t, v.address, flags...)
		s.harm()
		stopInOrder(t, before.Process)
		time.Sleep(scaled(500*time.Millisecond, time.Second))
	}
	s.end()
}

// An agent that is killed while it hands over, or takes over, may end connections; but each
// has one owner at every moment: no byte of those that go on is lost, or comes twice.
func TestHandoverIsCutShort(t *testing.T) {
	t.Parallel() // it waits
	for round := range scaled(2, 50) {
		for _, victim := range []string{"holder", "successor"} {
			t.Run(fmt.Sprint(victim, round), func(t *testing.T) {
				t.Parallel()
				f := newFleet(t, 1, flags{agent: []string{"--agent-id=agent-1", "--handover-socket=" + filepath.Join(t.TempDir(), "handover"), "--graceful-shutdown-timeout=20s"}})
				l, target := newLoad(t), testutil.Echo(t)
				for i := range 100 {
					l.add(t, fmt.Sprint("connection ", i), f.ways()[i%2], target, false)
				}
				holder := f.agent
				f.startAgent()
				victims := map[string]*suite.Agent{"holder": holder, "successor": f.agent}
				_ = holder.Signal(syscall.SIGTERM)
				time.Sleep(rand.N(300 * time.Millisecond))
				victims[victim].Kill()
				time.Sleep(scaled(time.Second, 3*time.Second))
				t.Logf("%d of 100 connections were ended", l.lost(t))
			})
		}
	}
}

// echoed are connections to a server that sends everything back.
type echoed []net.Conn

// openEchoes makes connections without a sidecar. They last until the test ends.
func (f *fleet) openEchoes(n int) (open echoed) {
	target := testutil.Serve(f.t, func(c *net.TCPConn) {
		_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c}) // without pipes, which are descriptors
	})
	d := f.newClient()
	for range n {
		c := must(d.DialContext(within(f.t, patience), "tcp", target))(f.t)
		f.t.Cleanup(func() { _ = c.Close() })
		open = append(open, c)
	}
	return open
}

// check fails the test unless every connection goes on.
func (e echoed) check(t *testing.T) {
	t.Helper()
	for _, c := range e {
		_ = c.SetDeadline(time.Now().Add(patience))
		must(io.WriteString(c, "hello"))(t)
		must(io.ReadFull(c, make([]byte, 5)))(t)
	}
}

// newClient makes a client of the first server that needs no sidecar.
func (f *fleet) newClient() *client.Client {
	c := must(client.New(client.Options{Address: suite.Loopback(f.servers[0].ClientPort), CAFile: f.PKI("ca.crt"), CertFile: f.PKI("client.crt"), KeyFile: f.PKI("client.key")}))(f.t)
	f.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Connections that are idle are handed over quickly, however many there are.
func TestManyConnectionsAreHandedOver(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, flags{agent: []string{"--handover-socket=" + filepath.Join(t.TempDir(), "handover"), "--memory-budget-mib=64"}})
	open := f.openEchoes(scaled(500, 10000))
	holder := f.agent
	f.startAgent()
	before := must(holder.Memory())(t)
	took, ran, together := f.handOver(holder)
	must(holder.Wait(patience))(t)
	after := must(f.agent.Memory())(t)
	open.check(t)
	t.Logf("%d connections in %v, and %v of both agents' processor time; the holder had %.1f MiB, its successor has %.1f MiB, both together at most %.1f MiB",
		len(open), took.Round(time.Millisecond), ran.Round(time.Millisecond), mib(before.Own), mib(after.Own), mib(together))
}

// What connections keep for readers that stand still takes both agents together no more than
// the one's memory budget and a tenth of that.
func TestHandoverKeepsToTheBudget(t *testing.T) {
	t.Parallel()
	const (
		many   = 300
		budget = 64 << 20
	)
	f := newFleet(t, 1, flags{agent: []string{"--handover-socket=" + filepath.Join(t.TempDir(), "handover"), fmt.Sprintf("--memory-budget-mib=%d", budget>>20), "--graceful-shutdown-timeout=10m"}})
	idle := must(f.agent.Memory())(t)
	d := f.newClient()
	orders, open := make([]order, many), make([]net.Conn, many)
	for i := range many {
		c := must(d.DialContext(within(t, patience), "tcp", f.vault.address))(t)
		defer c.Close()
		orders[i], open[i] = order{Kind: download, Seed: uint8(i), Size: 2 << 20}, c
		testutil.NoError(t, orders[i].send(c))
	}
	kept := func() float64 { return metric(f.agent.HealthURL("/metrics"), "agent_replay_buffered_bytes") }
	eventually(t, 3*patience, "an agent keeps a quarter of its budget", func() (bool, any) { n := kept(); return n > budget/4, n })
	before := must(f.agent.Memory())(t)
	holder := f.agent
	f.startAgent()
	took, _, together := f.handOver(holder)
	t.Logf("in %v; the holder had %.1f MiB and has %.1f MiB, the successor keeps %.1f MiB; both together had at most %.1f MiB",
		took.Round(time.Millisecond), mib(before.Own), mib(must(holder.Memory())(t).Own), kept()/(1<<20), mib(together))
	testutil.AtMost(t, mib(together), mib(2*idle.Own+budget*11/10), "MiB of both")
	for i, c := range open {
		testutil.Succeeds(t, orders[i].carry(patient{tunnel.Wrap(c)}, true), "download %d", i)
	}
}

// handOver has the holder hand over to the fleet's agent. It returns how long that took,
// how long both ran for it, and how much memory they held together at most.
func (f *fleet) handOver(holder *suite.Agent) (took, ran time.Duration, together int64) {
	t := f.t
	both := []*suite.Process{holder.Process, f.agent.Process}
	processor := func() (sum time.Duration) {
		for _, p := range both {
			ran, _, err := p.Processor()
			testutil.NoError(t, err)
			sum += ran
		}
		return sum
	}
	memory := func() (sum int64) {
		for _, p := range both {
			m, _ := p.Memory() // none once it has ended
			sum += m.Own
		}
		return sum
	}
	ran = processor()
	began := time.Now()
	testutil.NoError(t, holder.Signal(syscall.SIGTERM))
	for ; !handed.MatchString(holder.Output()); time.Sleep(time.Millisecond) {
		together = max(together, memory())
		testutil.Requires(t, time.Since(began) <= patience, "not handed over:\n%s", holder.Output())
	}
	together, ran = max(together, memory()), processor()-ran
	return must(time.Parse(time.RFC3339Nano, handed.FindStringSubmatch(holder.Output())[1]))(t).Sub(began), ran, together
}

// handed matches the line of a holder that has handed over all, and its time.
var handed = regexp.MustCompile(`"handed over the connections .*"time":"([^"]*)"`)

func mib(bytes int64) float64 { return float64(bytes) / (1 << 20) }

// A machine that is suspended in the middle of a hand-over, for longer than a message may take,
// ends it as if nothing had been.
func TestAMachineIsSuspendedDuringAHandover(t *testing.T) {
	t.Parallel() // it waits
	f := newFleet(t, 1, flags{agent: []string{"--handover-socket=" + filepath.Join(t.TempDir(), "handover"), "--graceful-shutdown-timeout=10m"}})
	open := f.openEchoes(100)
	holder := f.agent
	f.startAgent()
	testutil.NoError(t, f.agent.Signal(suite.Freeze))
	testutil.NoError(t, holder.Signal(syscall.SIGTERM))
	time.Sleep(time.Second) // a batch is on its way
	testutil.NoError(t, holder.Signal(suite.Freeze))
	time.Sleep(11 * time.Second)
	testutil.NoError(t, holder.Signal(suite.Thaw))
	time.Sleep(200 * time.Millisecond) // which one runs first is chance otherwise
	testutil.NoError(t, f.agent.Signal(suite.Thaw))
	must(holder.Wait(patience))(t)
	testutil.Contains(t, holder.Output(), "handed over the connections of this agent", "what it says")
	open.check(t)
}

// The time for which an agent stood still, as on a machine that was suspended, does not count
// against a destination that reads slowly.
func TestAMachineIsSuspendedBesideASlowReader(t *testing.T) {
	t.Parallel() // it waits
	f := newFleet(t, 1, flags{agent: []string{"--link=off"}})
	const size = 4 << 20
	read, got := make(chan struct{}), make(chan int64, 1)
	target := testutil.Serve(t, func(c *net.TCPConn) {
		<-read
		n, _ := io.Copy(io.Discard, c)
		got <- n
	})
	c := must(f.newClient().DialContext(within(t, patience), "tcp", target))(t)
	defer c.Close()
	must(c.Write(make([]byte, size)))(t)
	testutil.NoError(t, c.(interface{ CloseWrite() error }).CloseWrite())
	time.Sleep(time.Second) // the agent has what it takes, and looks at its reader
	testutil.NoError(t, f.agent.Signal(suite.Freeze))
	time.Sleep(11 * time.Second)
	testutil.NoError(t, f.agent.Signal(suite.Thaw))
	time.Sleep(500 * time.Millisecond)
	close(read)
	testutil.Equal(t, testutil.Receive(t, "the upload ends", got), size, "bytes that arrived")
}
