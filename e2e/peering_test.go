package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
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

// servedAlike is servers that forward to one another and serve the same tenants. The
// tenants' agents are links of this process.
type servedAlike struct {
	*suite.Suite
	servers []*suite.Server
	dir     string // of tenants, which all have
	tenants []*clusterOfMany
}

// serveAlike starts n servers with one folder of tenants.
func serveAlike(t *testing.T, n int) *servedAlike {
	t.Helper()
	a := &servedAlike{Suite: newSuite(t), dir: t.TempDir()}
	var ports, all []string
	for range n {
		port := testutil.Reserved(t)
		ports, all = append(ports, fmt.Sprint("--peer-port=", port)), append(all, suite.Loopback(port))
	}
	for _, port := range ports {
		srv := must(a.StartServer(port, "--peer-bind-address=127.0.0.1", "--peer-servers="+strings.Join(all, ","), "--tenants-dir="+a.dir, "--enable-profiling"))(t)
		a.servers = append(a.servers, srv)
	}
	for _, srv := range a.servers {
		reaches(t, patience, srv.HealthURL("/metrics"), "server_peer_servers", float64(n-1))
	}
	return a
}

// add adds a tenant to all servers.
func (a *servedAlike) add(t *testing.T, name string) {
	t.Helper()
	c := newTenant(t, name, "")
	c.putFolder(t, a.dir)
	a.tenants = append(a.tenants, c)
}

// served waits until each server serves so many tenants.
func (a *servedAlike) served(t *testing.T, n int) {
	t.Helper()
	for _, srv := range a.servers {
		reaches(t, time.Minute, srv.HealthURL("/metrics"), `server_tenants{state="serving"}`, float64(n))
	}
}

// agent links a tenant's agent to a server. It sends the tenant's name to each client,
// and then echoes.
func (a *servedAlike) agent(t *testing.T, c *clusterOfMany, srv *suite.Server) {
	t.Helper()
	pair := must(c.ca.Issue(pki.Leaf{CommonName: "agent", Client: true}))(t)
	config := &tls.Config{RootCAs: c.ca.Pool(), ServerName: c.serverName(), Certificates: []tls.Certificate{pair.TLS()}, NextProtos: []string{link.ALPN}}
	forwarder := &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			if _, err := fmt.Fprintf(far, "%-8s", c.name); err == nil {
				_, _ = io.Copy(far, far)
			}
		}()
		return tunnel.Wrap(near), nil
	})}
	eventually(t, patience, "the agent is linked", func() (bool, any) { // a busy machine may take longer than the server waits
		conn, err := tls.Dial("tcp", suite.Loopback(srv.AgentPort), config)
		if err != nil {
			return false, err
		}
		ses, err := link.Connect(within(t, patience), conn, link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "one", Software: "test"}, Handler: forwarder})
		if err != nil {
			return false, err
		}
		t.Cleanup(func() { _ = ses.Close() })
		return true, nil
	})
}

// dial reaches a tenant's agent by a server.
func (a *servedAlike) dial(ctx context.Context, c *clusterOfMany, srv *suite.Server) (tunnel.Conn, error) {
	way := viaConnect("tcp", suite.Loopback(srv.ClientPort), &tls.Config{
		RootCAs: c.ca.Pool(), ServerName: c.serverName(), Certificates: []tls.Certificate{c.client}, NextProtos: []string{"http/1.1"}})
	conn, err := way.Dial(ctx, tunnel.NewFlow("tcp", "10.0.0.1:443"))
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	said := make([]byte, 8)
	if _, err := io.ReadFull(conn, said); err != nil || strings.TrimSpace(string(said)) != c.name {
		_ = conn.Close()
		return nil, fmt.Errorf("the client of %s was told %q: %v", c.name, said, err)
	}
	return conn, nil
}

// heap is what a server has allocated, garbage left out. The profile has the figure from right
// after a collection; a scrape of 1,000 tenants' metrics would count its own garbage. Pools are
// emptied by the second collection.
func heap(t *testing.T, srv *suite.Server) float64 {
	t.Helper()
	var profile string
	for range 2 {
		profile, _ = page("http://" + suite.Loopback(srv.AdminPort) + "/debug/pprof/heap?gc=1&debug=1")
	}
	_, figure, _ := strings.Cut(profile, "# HeapAlloc = ")
	figure, _, _ = strings.Cut(figure, "\n")
	return must(strconv.ParseFloat(figure, 64))(t)
}

// Each tenant's agent is linked to one of three servers, and its clients meet any of them:
// each comes to its own agent. What a server knows of an agent of another costs it 1 KB at
// most, and a forwarded round trip 1.6 times the time of a direct one.
func TestTenantsOverThreeServers(t *testing.T) {
	t.Parallel()
	a := serveAlike(t, 3)
	n, dials := scaled(60, 1000), scaled(600, 10000)
	for i := range n {
		a.add(t, fmt.Sprint("t", i))
	}
	a.served(t, n)
	before, far := heap(t, a.servers[2]), 0
	for i, c := range a.tenants {
		if i%3 != 2 {
			a.agent(t, c, a.servers[i%3])
			far++
		}
	}
	const keys = 2 // its route, and any agent
	reaches(t, time.Minute, a.servers[2].HealthURL("/metrics"), "server_peer_routes", float64(keys*far))
	each := (heap(t, a.servers[2]) - before) / float64(far)
	t.Logf("%.0f bytes for each of %d agents of other servers", each, far)
	testutil.Holds(t, !scaled(false, true) || each <= 1000, "an agent of another server costs %.0f bytes, want at most 1,000", each)
	for i, c := range a.tenants {
		if i%3 == 2 {
			a.agent(t, c, a.servers[2])
		}
	}
	for i, srv := range a.servers {
		reaches(t, time.Minute, srv.HealthURL("/metrics"), "server_peer_routes", float64(keys*(n-(n+2-i)/3)))
	}

	var failed atomic.Int64
	var work sync.WaitGroup
	began := time.Now()
	for w := range 8 {
		work.Go(func() {
			for i := w; i < dials; i += 8 {
				conn, err := a.dial(t.Context(), a.tenants[i%n], a.servers[rand.N(3)])
				if err != nil {
					failed.Add(1)
					t.Error(err)
					return
				}
				_ = conn.Close()
			}
		})
	}
	work.Wait()
	t.Logf("%d dials of %d tenants by any of three servers in %v, %d failed", dials, n, time.Since(began), failed.Load())
	direct, forwarded := a.roundTrips(t, scaled(200, 10000))
	t.Logf("round trips: %v direct, %v forwarded, %.2f times as long", direct, forwarded, float64(forwarded)/float64(direct))
	testutil.Holds(t, !scaled(false, true) || float64(forwarded) <= 1.6*float64(direct),
		"a forwarded round trip takes more than 1.6 times as long")
}

// roundTrips are the medians of n round trips with an agent of the server that is asked,
// and of another: one after the other, so that both meet the same load.
func (a *servedAlike) roundTrips(t *testing.T, n int) (direct, forwarded time.Duration) {
	t.Helper()
	var took [2][]time.Duration
	var conns [2]tunnel.Conn
	for i := range conns {
		conns[i] = must(a.dial(t.Context(), a.tenants[0], a.servers[i]))(t)
		defer conns[i].Close()
	}
	for i := range 2 * n {
		began := time.Now()
		pingPong(t, conns[i%2], "ping")
		took[i%2] = append(took[i%2], time.Since(began))
	}
	for i := range took {
		slices.Sort(took[i])
	}
	return took[0][n/2], took[1][n/2]
}
