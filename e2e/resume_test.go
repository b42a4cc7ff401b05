package e2e

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// pause waits, unless it is over before.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// Connections outlive the links of either leg, whatever becomes of these.
func TestConnectionsOutliveLinks(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, flags{})
	base := f.rests()
	const all = 11 * time.Second // transfers have to last until the last harm
	s := startStorm(t, f.vault, scaled(all, 30*time.Second), halves, f.ways()...)
	for range scaled(10, 100) { // they are cut time and again
		for _, leg := range []*balancer{f.toClients, f.toAgents[rand.N(2)]} {
			leg.linked(t)
			s.harm()
			leg.cut()
			time.Sleep(rand.N(300 * time.Millisecond))
		}
	}
	// Only one side hears that they are gone. The other keeps its end until it has been silent for
	// too long; where that is the server, agents' connections stand still for as long.
	for range scaled(3, 20) {
		s.harm()
		f.toClients.sever(true)
		time.Sleep(time.Second)
	}
	if scaled(false, true) {
		for _, leg := range f.toAgents {
			s.harm()
			leg.sever(true)
			time.Sleep(livenessBound)
		}
	}
	// They stand still: for some moments, and, where there is time, for so long that they are
	// given up.
	for range scaled(1, 3) {
		for _, leg := range []*balancer{f.toClients, f.toAgents[0], f.toAgents[1]} {
			s.harm()
			ctx, cancel := context.WithTimeout(t.Context(), scaled(time.Second, 25*time.Second))
			leg.stands(ctx)
			cancel()
			time.Sleep(scaled(500*time.Millisecond, 5*time.Second))
		}
	}
	s.end()
	f.settles(base)
}

// Connections outlive three servers that are killed in turn.
func TestConnectionsOutliveServers(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 3, flags{})
	base := f.rests()
	s := startStorm(t, f.vault, scaled(8*time.Second, 30*time.Second), halves, f.ways()...)
	for i := range scaled(4, 30) {
		next := time.After(2 * time.Second)
		s.harm()
		f.kill(f.servers[i%3])
		<-next
	}
	s.end()
	f.settles(base)
}

// Connections outlive the only server, if it comes back in time.
func TestConnectionsOutliveTheOnlyServer(t *testing.T) {
	t.Parallel()
	window := []string{"--resume-window=1m"} // in which a busy machine starts a server, too
	f := newFleet(t, 1, flags{server: window, agent: window, sidecars: window})
	s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), halves, f.ways()...)
	for range scaled(1, 5) {
		time.Sleep(time.Second)
		s.harm()
		f.servers[0].Process.Kill()
		time.Sleep(scaled(time.Second, 10*time.Second))
		f.restart(f.servers[0])
		connected(t, f.agent, 1, patience)
	}
	s.end()
}

// window is that of tests in which nothing comes back.
const window = 2 * time.Second

// ended wants c to be reset, and not ended in order, soon after a window.
func ended(t *testing.T, what string, c net.Conn) {
	t.Helper()
	began := time.Now()
	_ = c.SetReadDeadline(began.Add(window + slack))
	_, err := io.Copy(io.Discard, c)
	t.Logf("%s: %v after %v", what, err, time.Since(began).Round(time.Millisecond))
	testutil.ErrorIs(t, err, syscall.ECONNRESET, "%s", what)
}

// A connection ends with either of its ends: the other hears of it within a
// window, and does not take it for the end of the data.
func TestConnectionsEndWithTheirEnds(t *testing.T) {
	t.Parallel() // it waits
	short := []string{"--resume-window=" + window.String()}
	f := newFleet(t, 2, flags{server: short, agent: append([]string{"--agent-id=agent-1"}, short...), sidecars: short})
	far := make(chan net.Conn, 1)
	target := testutil.Serve(t, func(c *net.TCPConn) {
		far <- c
		<-t.Context().Done()
	})
	used := func(way tunnel.Dialer) (near, other net.Conn) { // both ways
		near = dialed(t, way, target)
		other = <-far
		for _, c := range []net.Conn{near, other} {
			must(c.Write([]byte("x")))(t)
		}
		must(io.ReadFull(near, make([]byte, 1)))(t)
		must(io.ReadFull(other, make([]byte, 1)))(t)
		return near, other
	}
	_, other := used(viaSOCKS5(f.socks.Address()))
	f.socks.Kill()
	ended(t, "the far end of a sidecar's", other)
	way := viaConnect("tcp", f.https.Address(), nil)
	near, _ := used(way)
	f.agent.Kill()
	f.startAgent()
	ended(t, "the near end of an agent's that comes back", near)
	near, _ = used(way)
	f.agent.Kill()
	ended(t, "the near end of an agent's", near)
}

// Where one of the programs does not take part, all works as ever: connections
// are carried, and end with the sidecar's link.
func TestConnectionsArePlainWhereOneSideIs(t *testing.T) {
	t.Parallel() // it waits
	off, old := []string{"--resume-window=0"}, []string{"--link=off"}
	testutil.Each(t, map[string]flags{
		"server": {server: off}, "agent": {agent: off}, "sidecars": {sidecars: off}, "no links": {server: old, agent: old, sidecars: old},
	}, func(t *testing.T, more flags) {
		t.Parallel()
		f := newFleet(t, 1, more)
		s := startStorm(t, f.vault, scaled(time.Second, 10*time.Second), halves, f.ways()...)
		s.end()
		target := testutil.Echo(t)
		var conns []net.Conn
		for _, way := range f.ways() {
			c := dialed(t, way, target)
			must(c.Write([]byte("x")))(t)
			must(io.ReadFull(c, make([]byte, 1)))(t)
			conns = append(conns, c)
		}
		f.toClients.cut() // of a sidecar's that does not take part the server is an end
		for _, c := range conns {
			ended(t, "after a cut", c)
		}
	})
}

// Connections that end in the server, for kube-apiserver, outlive the agent's
// link.
func TestConnectionsOfTheServerOutliveLinks(t *testing.T) {
	t.Parallel()
	t.Run("CONNECT", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, 1, flags{})
		tls := (&whole{Suite: f.Suite}).clientTLS(t)
		f.cutAgent(t, halves, viaConnect("tcp", suite.Loopback(f.servers[0].ClientPort), tls), viaConnect("unix", f.servers[0].UDS, nil))
	})
	t.Run("gRPC", func(t *testing.T) {
		t.Parallel()
		f := newFleet(t, 1, flags{})
		f.cutAgent(t, wholes, viaGRPC(f.servers[0].UDS))
	})
}

func (f *fleet) cutAgent(t *testing.T, kinds []byte, ways ...tunnel.Dialer) {
	for _, way := range ways { // what is lazily made, is
		testutil.NoError(t, try(t, way, f.vault.address))
	}
	base := f.rests()
	s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), kinds, ways...)
	for range scaled(10, 100) {
		f.toAgents[0].linked(t)
		s.harm()
		f.toAgents[0].cut()
		time.Sleep(rand.N(500 * time.Millisecond))
	}
	s.end()
	f.settles(base)
}

// dialing dials by some ways, so many times a second, until stop is called; each
// connection carries a byte there and back. On a machine that is too busy for that, they are
// fewer: 15 are under way at most. stop tells how many were made, and fails the test
// for those that went wrong.
func dialing(t *testing.T, ways []tunnel.Dialer, target string, perSecond int) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var made, failed atomic.Int64
	var work errgroup.Group
	work.SetLimit(16)
	work.Go(func() error {
		began := time.Now()
		for i := 0; ctx.Err() == nil; i++ {
			pause(ctx, time.Until(began.Add(time.Duration(i)*time.Second/time.Duration(perSecond))))
			work.Go(func() error {
				o := echoOnce(ways[i%len(ways)], target)
				made.Add(1)
				testutil.Holds(t, o.err == nil || failed.Add(1) > 10, "%v", o.err)
				return nil
			})
		}
		return nil
	})
	stop = sync.OnceFunc(func() {
		cancel()
		_ = work.Wait()
		t.Logf("%d dials, %d failed", made.Load(), failed.Load())
		testutil.AtLeast(t, made.Load(), 1, "dials")
	})
	t.Cleanup(stop)
	return stop
}

// Servers are replaced one after the other: no connection is lost, no dial
// fails, and a server that goes does not wait for what others can carry.
func TestConnectionsMoveBeforeAServerLeaves(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, flags{server: []string{"--graceful-shutdown-timeout=2m"}})
	base := f.rests()
	s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), halves, f.ways()...)
	stop := dialing(t, f.ways(), testutil.Echo(t), scaled(50, 200))
	for range scaled(1, 10) {
		for _, srv := range f.servers {
			s.harm()
			began := time.Now()
			stopInOrder(t, srv.Process)
			// 2 minutes are granted, and as long would it wait for the storm's probes.
			if took := time.Since(began); took > patience {
				t.Errorf("a server took %v to leave", took)
			} else {
				t.Logf("a server left in %v", took)
			}
			f.restart(srv)
			connected(t, f.agent, 2, patience)
			time.Sleep(scaled(500*time.Millisecond, time.Second))
		}
	}
	stop()
	s.end()
	f.settles(base)
}

// An agent drains beside another one of its id, with no hand-over socket between them. Its
// connections go on through it, though their links are cut, or all servers are replaced.
func TestConnectionsGoOnThroughAnAgentThatDrains(t *testing.T) {
	t.Parallel()
	testutil.Each(t, map[string]func(*fleet){
		"links are cut": func(f *fleet) {
			for _, leg := range f.toAgents {
				leg.cut()
				time.Sleep(500 * time.Millisecond)
			}
		},
		"servers are replaced": func(f *fleet) {
			for _, srv := range f.servers {
				stopInOrder(f.t, srv.Process)
				f.restart(srv)
				connected(f.t, f.agent, 2, patience)
			}
		},
	}, func(t *testing.T, harm func(*fleet)) {
		t.Parallel()
		f := newFleet(t, 2, flags{
			server: []string{"--graceful-shutdown-timeout=2m"},
			agent:  []string{"--agent-id=agent-1", "--graceful-shutdown-timeout=10m"},
		})
		s := startStorm(t, f.vault, scaled(6*time.Second, 30*time.Second), halves, f.ways()...)
		before := f.agent
		f.startAgent()
		testutil.NoError(t, before.Signal(syscall.SIGTERM))
		eventually(t, patience, "it drains", func() (bool, any) {
			out := before.Output()
			return strings.Contains(out, "draining: servers were told"), out
		})
		for range scaled(2, 10) {
			s.harm()
			harm(f)
		}
		s.end()
		code, err := before.Wait(2 * patience) // an end whose other end is gone without a word stays for a window
		testutil.Holds(t, code == 0 && err == nil, "the agent ends: %d, %v\n%s", code, err, before.Output())
	})
}
