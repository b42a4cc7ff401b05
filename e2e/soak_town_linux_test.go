package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// town is a fleet with all that faults strike: servers that forward to one another, follow a
// revocation list, a policy, tenants and tokens, and write an audit log; and, beside the fleet's
// agent, one through which a node reaches its API server, one beside that, and one whose
// connections are victims.
type town struct {
	*fleet
	dir                       string
	r                         *rand.Rand
	watch                     *watcher
	ca                        *pki.CA
	reviews                   *kubeAPI
	tenants                   *hosting
	changing, neighbour       *clusterOfMany // tenants
	guests                    []*suite.Agent // of tenants
	serverPolicy, agentPolicy string
	token                     string
	toBeside                  []*balancer
	besideFlags               []string
	node, beside, mortal      *suite.Agent
	nodePort                  int
	echo, mortalEcho          string // destinations of victims
	ended                     int    // victims
	times                     int    // something was made that needs a name
}

const mortalHost = "127.0.1.2"

func (w *town) file(name string) string { return filepath.Join(w.dir, name) }

func newTown(t *testing.T, r *rand.Rand) *town {
	t.Helper()
	s := newSuite(t)
	w := &town{fleet: &fleet{t: t}, dir: t.TempDir(), r: r, watch: newWatcher(), reviews: newKubeAPI(t, s), echo: testutil.Echo(t), nodePort: testutil.Reserved(t),
		serverPolicy: policyFile(t, noDenial), agentPolicy: policyFile(t, noDenial),
		ca: must(pki.ParseCA(must(os.ReadFile(s.PKI("ca.crt")))(t), must(os.ReadFile(s.PKI("ca.key")))(t)))(t)}
	_, port, _ := net.SplitHostPort(testutil.ServeAt(t, mortalHost+":0", func(c *net.TCPConn) { _, _ = io.Copy(c, c) }))
	w.mortalEcho = net.JoinHostPort(mortalHost, port)
	w.revoke()
	w.replaceTokenFile()
	tenants := w.file("tenants")
	testutil.NoError(t, os.Mkdir(tenants, 0o700))
	var peers []string
	var each [][]string
	for range 3 {
		port := testutil.Reserved(t)
		peers, each = append(peers, suite.Loopback(port)), append(each, []string{fmt.Sprint("--peer-port=", port)})
	}
	window := "--resume-window=1m"
	w.fleet = newFleetOf(t, s, 3, flags{
		server: []string{window, "--audit-log=" + w.file("servers.jsonl"), "--proxy-strategies=destHost", "--api-server=agent", "--tenants-dir=" + tenants,
			"--peer-servers=" + strings.Join(peers, ","), "--peer-bind-address=127.0.0.1", "--policy-file=" + w.serverPolicy,
			"--server-ca-crl=" + w.file("crl"), "--cluster-ca-crl=" + w.file("crl"), "--client-service-accounts=control/https",
			"--client-authentication-audience=konnectivity", "--client-kubeconfig=" + w.reviews.kubeconfig},
		each: each,
		agent: []string{window, "--agent-id=agent", "--agent-identifiers=ipv4=127.0.0.1", "--graceful-shutdown-timeout=35s",
			"--handover-socket=" + w.file("handover"), "--policy-file=" + w.agentPolicy, "--audit-log=" + w.file("agents.jsonl")},
		sidecars: []string{window, "--audit-log=" + w.file("sidecars.jsonl")},
		https:    []string{"--tls-cert-path=", "--tls-key-path=", "--token-path=" + w.file("token")},
	})
	w.tenants = &hosting{Suite: s, server: w.servers[0], dir: tenants}
	w.besideFlags = []string{window, "--agent-id=beside", "--api-server=" + w.vault.address, "--handover-socket=" + w.file("beside"), "--graceful-shutdown-timeout=35s",
		"--sync-interval-cap=2s", "--agent-cert=" + s.PKI("client.crt"), "--agent-key=" + s.PKI("client.key"), "--audit-log=" + w.file("agents.jsonl")}
	for i, srv := range w.servers {
		b := newBalancer(t, backend{port: srv.ClientPort})
		w.toBeside = append(w.toBeside, b)
		if i > 0 {
			w.besideFlags = append(w.besideFlags, "--proxy-server-host="+suite.Loopback(b.port))
		}
		w.serves(srv)
	}
	w.plays("agent", w.agent)
	w.watch.plays("socks5", w.socks.Process, "http://"+w.health["socks5"]+"/metrics")
	w.watch.plays("https", w.https.Process, "http://"+w.health["https"]+"/metrics")
	w.node = w.newAgent("node", "127.0.1.3", "--api-bind="+suite.Loopback(w.nodePort))
	w.beside = w.newBeside()
	w.plays("agent beside", w.beside)
	w.mortal = w.newMortal()
	w.residents()
	return w
}

// fronts are the sidecars', and ways also a node's way to its API server.
func (w *town) fronts() []tunnel.Dialer { return w.fleet.ways() }

func (w *town) ways() []tunnel.Dialer { return append(w.fronts(), knocking(viaNode(w.nodePort))) }

// newAgent starts an agent of the fleet that is told from others by an address.
func (w *town) newAgent(name, address string, more ...string) *suite.Agent {
	id := []string{"--agent-id=" + name, "--agent-identifiers=ipv4=" + address, "--handover-socket="}
	others := slices.DeleteFunc(slices.Clone(w.flags.agent), func(f string) bool { return strings.HasPrefix(f, "--policy-file=") })
	a := must(w.StartAgent(w.toAgents[0].front(), slices.Concat(others, id, more)...))(w.t)
	connected(w.t, a, len(w.servers), patience)
	w.plays("agent "+name, a)
	return a
}

// plays and serves tell the watch whose turn it is.
func (w *town) plays(role string, a *suite.Agent) {
	w.watch.plays(role, a.Process, a.HealthURL("/metrics"))
}

func (w *town) serves(srv *suite.Server) {
	w.watch.plays(fmt.Sprint("server ", 1+slices.Index(w.servers, srv)), srv.Process, srv.HealthURL("/metrics"))
}

func (w *town) newBeside() *suite.Agent {
	a := must(w.StartAgent(w.toBeside[0].front(), w.besideFlags...))(w.t)
	connected(w.t, a, len(w.servers), patience)
	return a
}

// newMortal starts the agent of victims. Its socket is its own.
func (w *town) newMortal() *suite.Agent {
	return w.newAgent("mortal", mortalHost, "--handover-socket="+filepath.Join(w.dir, "mortal"), "--resume-window=10s")
}

// tell shows what every program says of a client's connection.
func (w *town) tell(address string) {
	at := []string{w.admin["socks5"], w.admin["https"]}
	for _, a := range []*suite.Agent{w.node, w.beside, w.agent} {
		at = append(at, suite.Loopback(a.AdminPort))
	}
	for _, srv := range w.servers {
		at = append(at, suite.Loopback(srv.AdminPort))
	}
	id := "" // by its address where it enters
	for _, admin := range at {
		items, _ := listed(admin, "connections?filter="+address)
		for _, item := range items {
			id, _ = item["id"].(string)
		}
	}
	for _, admin := range at {
		items, _ := listed(admin, "connections?filter="+id)
		for _, item := range items {
			w.t.Logf("%s at %s: %v", address, admin, item)
		}
	}
}

// tellFailures shows why dials fail, as each sidecar tells it.
func (w *town) tellFailures() {
	for name, admin := range w.admin {
		items, err := listed(admin, "failures?limit=3")
		w.t.Logf("failed dials at %s: %v %v", name, items, err)
	}
}

// listed are the items of a list of the API.
func listed(admin, list string) ([]map[string]any, error) {
	var got struct{ Items []map[string]any }
	body, status := page("http://" + admin + "/api/v1/" + list)
	if status != http.StatusOK {
		return nil, fmt.Errorf("%s: status %d", list, status)
	}
	err := json.Unmarshal([]byte(body), &got)
	return got.Items, err
}
