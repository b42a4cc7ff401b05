package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// node is an agent with --api-bind, and the two servers it is connected to.
type node struct {
	*suite.Suite
	servers []*suite.Server
	flags   []string // of the servers
	agent   *suite.Agent
	beside  *suite.Agent // the API server; nil: the servers dial that
	api     *target
	ca      string // file of the API server's CA
	port    int
	socket  string
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := newNodeOf(t)
	n.start(t, n.api.secure.Listener.Addr().String())
	return n
}

func newNodeOf(t *testing.T) *node {
	t.Helper()
	n := &node{Suite: newSuite(t), api: newTarget(t), port: testutil.Reserved(t)}
	n.ca, n.socket = filepath.Join(n.Dir, "api-ca.crt"), filepath.Join(n.Dir, "api.sock")
	testutil.NoError(t, os.WriteFile(n.ca, n.api.ca.CertPEM, 0o644))
	return n
}

// start starts the servers, which reach the API server as the flag says, and the agent.
func (n *node) start(t *testing.T, apiServer string) {
	t.Helper()
	n.flags = []string{"--server-count=2", "--api-server=" + apiServer}
	var hosts []string
	for range 2 {
		srv := must(n.StartServer(n.flags...))(t)
		n.servers, hosts = append(n.servers, srv), append(hosts, suite.Loopback(srv.AgentPort))
	}
	n.agent = must(n.StartAgent(n.servers[0], "--proxy-server-host="+strings.Join(hosts, ","),
		fmt.Sprintf("--api-bind=%s,unix:%s", suite.Loopback(n.port), n.socket)))(t)
	connected(t, n.agent, 2, patience)
}

// asks has curl ask the API server for a payload, as a program of the node.
func (n *node) asks(t *testing.T, size int64, how ...string) {
	t.Helper()
	url := fmt.Sprintf("https://localhost:%d/3/%d", n.port, size)
	got, err := curl(t, append(how, "--cacert", n.ca, url)...)
	h, _ := hashOf(strings.NewReader(string(got)))
	testutil.Holds(t, err == nil && h == sum(3, size), "%d bytes of %d, %v", len(got), size, err)
}

// A node's program reaches its API server by the agent's address and socket, with TLS from
// end to end, and after a server was killed by the other.
func TestNodesReachTheirAPIServer(t *testing.T) {
	n := newNode(t)
	n.asks(t, 5<<20+3)
	n.asks(t, 5<<20+3, "--unix-socket", n.socket)
	testutil.Fails(t, testutil.Err(curl(t, fmt.Sprintf("https://localhost:%d/3/1", n.port))),
		"curl that does not know the CA")
	n.servers[0].Kill()
	connected(t, n.agent, 1, patience)
	n.asks(t, 1000)
	eventually(t, patience, "figures", func() (bool, any) {
		from := metric(n.agent.HealthURL("/metrics"), `agent_api_bytes_total{direction="from_api"}`)
		return from > 10<<20, from
	})
	testutil.AtLeast(t, metric(n.servers[1].HealthURL("/metrics"), `server_requests_total{front="api",outcome="ok"}`), 1,
		"connections by the server that is left")
}

// check says which step of that way fails, and why.
func TestCheckOfNodesWay(t *testing.T) {
	n := newNode(t)
	checks := func(status int, address string, wants ...string) {
		t.Helper()
		told := func(got int, screen string) bool {
			return got == status && !slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(screen, want) })
		}
		got, screen := 0, ""
		for range 3 { // within the seconds that a step has, a busy machine may not answer at all
			if got, screen = operator(t, n.Suite, "check", "--api="+address, "--agent-admin="+suite.Loopback(n.agent.AdminPort)); told(got, screen) {
				return
			}
		}
		t.Errorf("%d, and not all of %q in\n%s", got, wants, screen)
	}
	checks(0, fmt.Sprintf("localhost:%d", n.port), "✔ the agent's --api-bind", "✔ the API server: answers by TLS", "✔ certificate of the API server: it is for localhost")
	checks(0, suite.Loopback(n.port), "! certificate of the API server", "Issue it for 127.0.0.1, too")
	checks(0, "unix:"+n.socket, "✔ the API server: answers by TLS")
	checks(1, suite.Loopback(testutil.Reserved(t)), "✘ the agent's --api-bind", "Start the node's agent with --api-bind=")
	for _, srv := range n.servers { // none of them has an API server to name
		srv.Kill()
		testutil.NoError(t, n.RunServer(srv))
	}
	connected(t, n.agent, 2, patience)
	checks(1, suite.Loopback(n.port), "✘ the API server: the agent says: ", "no API server is named on the server for this cluster")
	for _, at := range []int{n.agent.AdminPort, n.servers[0].AdminPort, n.servers[1].AdminPort} {
		_, screen := operator(t, n.Suite, "status", suite.Loopback(at))
		if text := strings.Join(strings.Fields(screen), " "); !strings.Contains(text, "no API server is named on the server for this cluster") ||
			!strings.Contains(text, "Run konnectivity check --api on the node.") {
			t.Errorf("status:\n%s", screen)
		}
	}
}

// The figures of docs/performance.md: both ways in turn, in one run. The way of clients to
// nodes passes a sidecar as well.
func TestNodesWayIsAsFastAsTheOther(t *testing.T) {
	n := newNode(t)
	n.compare(t, must(n.StartSOCKS5(n.servers[0]))(t))
}

// compare has both ways take turns.
func (n *node) compare(t *testing.T, socks *suite.Sidecar) {
	t.Helper()
	direct := strings.Replace(n.api.secure.URL, "127.0.0.1", "localhost", 1)
	for _, c := range []struct {
		what   string
		size   int64
		rounds int
	}{{"50 MB", 50 << 20, 5}, {"1 byte", 1, 15}} {
		var ratios []float64
		for range c.rounds {
			own := n.timed(t, fmt.Sprintf("https://localhost:%d/3/%d", n.port, c.size))
			other := n.timed(t, fmt.Sprintf("%s/3/%d", direct, c.size), "--socks5-hostname", socks.Address())
			ratios = append(ratios, other/own)
		}
		slices.Sort(ratios)
		t.Logf("%s: %.2f times as fast as the other way (%.2f to %.2f)", c.what, ratios[len(ratios)/2], ratios[0], ratios[len(ratios)-1])
	}
}

// timed is how many seconds curl takes for a URL.
func (n *node) timed(t *testing.T, url string, how ...string) float64 {
	t.Helper()
	got := testutil.Must(curl(t, append(how, "--cacert", n.ca, "--output", os.DevNull, "--write-out", "%{time_total}", url)...))(t)
	return must(strconv.ParseFloat(string(got), 64))(t)
}

// startBeside starts servers with --api-server=agent, the node's agent, and one beside the
// API server at that address.
func (n *node) startBeside(t *testing.T, api string, more ...string) {
	t.Helper()
	n.start(t, "agent")
	n.beside = n.agentBeside(t, api, more...)
}

func (n *node) agentBeside(t *testing.T, api string, more ...string) *suite.Agent {
	t.Helper()
	first, second := n.servers[0].ClientPort, n.servers[1].ClientPort
	a := must(n.StartAgent(n.servers[0], append(more, fmt.Sprintf("--proxy-server-port=%d", first), "--proxy-server-host="+suite.Loopback(second), "--api-server="+api,
		"--agent-cert="+n.PKI("client.crt"), "--agent-key="+n.PKI("client.key"))...))(t)
	connected(t, a, 2, patience)
	return a
}

// replaceServers replaces one server after the other so many times: two are killed, and then
// two are told to stop. It calls harm before, and gone once the server is.
func (n *node) replaceServers(t *testing.T, times int, harm, gone func()) {
	t.Helper()
	for i := range times {
		srv := n.servers[i%2]
		harm()
		if i/2%2 == 0 {
			srv.Process.Kill()
		} else {
			stopInOrder(t, srv.Process)
		}
		gone()
		testutil.NoError(t, n.RunServer(srv, n.flags...))
		connected(t, n.agent, 2, patience)
		connected(t, n.beside, 2, patience)
	}
}

// Transfers of all kinds between a node and its API server, and connections that are made
// meanwhile, outlive servers: none of them fails.
func TestTransfersOfNodesOutliveServers(t *testing.T) {
	t.Parallel() // it waits
	n, v := newNodeOf(t), newVault(t)
	n.startBeside(t, v.address)
	s := startStorm(t, v, scaled(6*time.Second, 30*time.Second), halves, viaNode(n.port))
	n.replaceServers(t, scaled(4, 20), s.harm, func() { time.Sleep(scaled(500*time.Millisecond, time.Second)) })
	s.end()
}

// viaNode is how a node's programs reach their API server.
func viaNode(port int) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", suite.Loopback(port))
		if err != nil {
			return nil, err
		}
		return tunnel.Wrap(c), nil
	})
}

// Nodes' way through an agent beside the API server is as fast as the other direction.
func TestNodesWayBesideIsAsFastAsTheOther(t *testing.T) {
	n := newNodeOf(t)
	n.startBeside(t, n.api.secure.Listener.Addr().String())
	socks := must(n.StartSOCKS5(n.servers[0]))(t)
	n.compare(t, socks)
}
