package e2e

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// crew is three servers that forward to one another, with one agent each for an address
// of its own.
type crew struct {
	*suite.Suite
	servers []*suite.Server
	agents  []*suite.Agent
	flags   [][]string // of servers
	targets []string
}

// crewWindow is long enough for a busy machine to start a server again whose agent knows no
// other, and to have the agent link to it.
const crewWindow = "--resume-window=1m"

func newCrew(t *testing.T) *crew {
	t.Helper()
	return newCrewOf(t, newSuite(t), func(_ int, all []string) []string {
		return []string{"--graceful-shutdown-timeout=1s", "--peer-servers=" + strings.Join(all, ",")}
	})
}

// newCrewOf is newCrew for servers that find one another by flags of their own.
func newCrewOf(t *testing.T, s *suite.Suite, find func(i int, all []string) []string) *crew {
	t.Helper()
	c := &crew{Suite: s}
	var ports []int
	var all []string
	for range 3 {
		port := testutil.Reserved(t)
		ports, all = append(ports, port), append(all, suite.Loopback(port))
	}
	_, echo, _ := net.SplitHostPort(testutil.ServeAt(t, "0.0.0.0:0", func(c *net.TCPConn) { _, _ = io.Copy(c, c) }))
	for i, port := range ports {
		flags := append(find(i, all), crewWindow, "--proxy-strategies=destHost", fmt.Sprint("--peer-port=", port), "--peer-bind-address=127.0.0.1")
		srv := must(c.StartServer(flags...))(t)
		address := fmt.Sprint("127.0.1.", i+1)
		agent := must(c.LaunchAgent(srv, crewWindow, "--agent-identifiers=ipv4="+address, "--sync-interval-cap=1s"))(t)
		c.servers, c.agents, c.flags = append(c.servers, srv), append(c.agents, agent), append(c.flags, flags)
		c.targets = append(c.targets, net.JoinHostPort(address, echo))
	}
	c.linked(t)
	return c
}

// linked waits until each server knows the agents of the others.
func (c *crew) linked(t *testing.T) {
	t.Helper()
	for _, srv := range c.servers {
		reaches(t, patience, srv.HealthURL("/metrics"), "server_peer_servers", 2)
		reaches(t, patience, srv.HealthURL("/metrics"), "server_peer_routes", 8) // route, address, any agent, any host; of two agents
	}
}

// Each agent is linked to one of three servers, and clients reach it through any of them.
// Servers are killed and replaced one after the other: no dial fails, and no connection of
// a sidecar is lost.
func TestAnyServerWillDo(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	clients := newBalancer(t, clientSide(c.servers...)...)
	sidecar := must(c.StartHTTPS(clients.front(), crewWindow))(t)
	ways := []tunnel.Dialer{viaConnect("tcp", sidecar.Address(), nil)}
	for _, srv := range c.servers {
		ways = append(ways, viaConnect("unix", srv.UDS, nil)) // a server of its own
	}
	began, dials := time.Now(), scaled(300, 10000)
	for i := range dials {
		testutil.NoError(t, echoOnce(ways[i%len(ways)], c.targets[i/len(ways)%3]).err)
	}
	t.Logf("%d dials in %v", dials, time.Since(began))

	var held []tunnel.Conn
	for _, target := range c.targets {
		conn := dialed(t, ways[0], target)
		held = append(held, conn)
	}
	var stops []func()
	for _, target := range c.targets {
		stops = append(stops, dialing(t, ways[:1], target, scaled(15, 167)))
	}
	replace := func(i int, how string) {
		t.Helper()
		testutil.NoError(t, c.RunServer(c.servers[i], c.flags[i]...))
		c.linked(t)
		for n, conn := range held {
			pingPong(t, conn, fmt.Sprintf("server %d was %s, connection %d", i, how, n))
		}
	}
	for i, srv := range c.servers {
		time.Sleep(scaled(200*time.Millisecond, 2*time.Second))
		srv.Kill()
		replace(i, "killed")
	}
	for _, stop := range stops {
		stop()
	}
	began = time.Now()
	stopInOrder(t, c.servers[0].Process)
	t.Logf("a server left in %v", time.Since(began))
	replace(0, "stopped")
	status, screen := operator(t, c.Suite, "status", suite.Loopback(c.servers[0].AdminPort))
	testutil.Holds(t, strings.Contains(screen, "2 servers") && strings.Contains(screen, "server  "),
		"konnectivity status shows no other servers (exit status %d):\n%s", status, screen)
	c.standsStill(t)
}

// standsStill freezes a server, as a bug or a machine that hangs does: dials that others forward
// to it are held up for a bounded time, which is shown, and dials for other agents go on. When it
// goes on, it is linked again.
func (c *crew) standsStill(t *testing.T) {
	t.Helper()
	asked, frozen := c.servers[0], c.servers[2]
	way, figures := viaConnect("unix", asked.UDS, nil), asked.HealthURL("/metrics")
	testutil.NoError(t, frozen.Signal(suite.Freeze))
	defer func() { _ = frozen.Signal(suite.Thaw) }()
	stop := dialing(t, []tunnel.Dialer{way}, c.targets[1], 20)
	held := echoOnce(way, c.targets[2])
	testutil.Holds(t, held.err != nil && held.took < livenessBound+slack, "a dial by a server that stands still: %v after %v", held.err, held.took)
	reaches(t, patience, figures, "server_peer_servers", 1)
	reaches(t, patience, figures, "server_peer_servers_missing", 1)
	again := echoOnce(way, c.targets[2])
	testutil.Holds(t, again.err != nil && again.took < livenessBound/2, "a dial once it is given up: %v after %v", again.err, again.took)
	stop()
	testutil.NoError(t, frozen.Signal(suite.Thaw))
	c.linked(t)
	testutil.Succeeds(t, echoOnce(way, c.targets[2]).err, "an echo")
}

// Servers find one another by the addresses in their leases, also one that is replaced and
// has another address since. Agents behind a balancer find all servers that have a lease, whether
// they watch leases themselves or servers tell them how many there are.
func TestServersFoundByLeases(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	api := newKubeAPI(t, s)
	c := newCrewOf(t, s, func(i int, _ []string) []string {
		return append(api.apiArgs(), "--enable-lease-controller", fmt.Sprint("--server-id=srv-", i), "--peer-advertise-address=127.0.0.1", "--peer-server-name=localhost")
	})
	reached := func() {
		t.Helper()
		for _, srv := range c.servers {
			for _, target := range c.targets {
				testutil.Succeeds(t, echoOnce(viaConnect("unix", srv.UDS, nil), target).err, "an echo")
			}
		}
	}
	reached()
	c.servers[0].Kill()
	testutil.NoError(t, c.RunServer(c.servers[0], append(c.flags[0], fmt.Sprint("--peer-port=", testutil.Reserved(t)))...))
	c.linked(t)
	reached()
	lb := newBalancer(t, agentSide(c.servers...)...)
	for _, args := range [][]string{nil, {"--link=off"}, append(api.apiArgs(), "--count-server-leases")} {
		connected(t, must(s.StartAgent(lb.front(), args...))(t), 3, patience)
	}
	stopInOrder(t, c.servers[2].Process)
	testutil.Holds(t, api.object(place{"leases", "kube-system", "konnectivity-proxy-server-srv-2"}) == nil, "a server that has left has a lease")
}

// Three servers, each agent and the sidecar linked to one of them only. Servers leave in
// turn, and are killed in turn: no dial fails, and none of the sidecar's connections is
// lost.
func TestOneServerEach(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	var hosts []string
	for _, srv := range c.servers {
		hosts = append(hosts, suite.Loopback(srv.AgentPort))
	}
	addresses := "--proxy-server-host=" + strings.Join(hosts, ",")
	for i, agent := range c.agents {
		stopInOrder(t, agent.Process)
		c.agents[i] = must(c.StartAgent(c.servers[i], crewWindow, addresses, "--max-servers=1", fmt.Sprint("--agent-id=a", i), fmt.Sprintf("--agent-identifiers=ipv4=127.0.1.%d", i+1), "--sync-interval-cap=1s"))(t)
	}
	clients := newBalancer(t, clientSide(c.servers...)...)
	sidecar := must(c.StartHTTPS(clients.front(), crewWindow, "--max-servers=1"))(t)
	way := viaConnect("tcp", sidecar.Address(), nil)
	var held []tunnel.Conn
	for _, target := range c.targets {
		conn := dialed(t, way, target)
		held = append(held, conn)
	}
	one := func(what string) {
		t.Helper()
		for i, agent := range c.agents {
			eventually(t, patience, fmt.Sprintf("agent %d has one server, %s", i, what), func() (bool, any) {
				n := metric(agent.HealthURL("/metrics"), "agent_open_server_connections")
				return n == 1, n
			})
		}
		for n, conn := range held {
			pingPong(t, conn, fmt.Sprintf("%s, connection %d", what, n))
		}
	}
	one("at first")
	var stops []func()
	for _, target := range c.targets {
		stops = append(stops, dialing(t, []tunnel.Dialer{way}, target, scaled(10, 167)))
	}
	for i, srv := range c.servers {
		for _, how := range []string{"stopped", "killed"} {
			if how == "stopped" {
				stopInOrder(t, srv.Process)
			} else {
				srv.Kill()
			}
			testutil.NoError(t, c.RunServer(srv, c.flags[i]...))
			for _, srv := range c.servers {
				reaches(t, patience, srv.HealthURL("/metrics"), "server_peer_servers", 2)
			}
			one(fmt.Sprintf("server %d was %s", i, how))
		}
	}
	for _, stop := range stops {
		stop()
	}
	for _, p := range append([]*suite.Process{sidecar.Process}, c.agents[0].Process) {
		testutil.Holds(t, !strings.Contains(p.Output(), "does not forward to others"),
			"%s warns of servers that forward", p.Name)
	}
}

// A server leaves whose agent knows no other: it waits a moment for the agent to find one,
// and then goes, since connections that outlive it go on when it is back.
func TestTheOnlyServerOfAnAgentLeaves(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	c := newCrewOf(t, s, func(_ int, all []string) []string {
		return []string{"--graceful-shutdown-timeout=2m", "--peer-servers=" + strings.Join(all, ",")}
	})
	sidecar := must(c.StartHTTPS(c.servers[1], crewWindow))(t)
	conn := dialed(t, viaConnect("tcp", sidecar.Address(), nil), c.targets[0])
	pingPong(t, conn, "before")
	began := time.Now()
	stopInOrder(t, c.servers[0].Process)
	took := time.Since(began)
	t.Logf("it left in %v", took)
	testutil.AtMost(t, took, patience, "it left late in its grace period")
	testutil.NoError(t, c.RunServer(c.servers[0], c.flags[0]...))
	c.linked(t)
	pingPong(t, conn, "after")
}
