package kube

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/server/egressselector"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// patience is how long anything may take to come back to rest.
const patience = time.Minute

// kind is a way in which kube-apiserver reaches a konnectivity server.
type kind struct {
	name      string
	transport func(c *cluster) string // of its EgressSelectorConfiguration
	protocol  string
}

// direct are all that the egress selector has (egress_selector.go).
var direct = []kind{
	{"grpc over uds", uds, "GRPC"},
	{"http-connect over uds", uds, "HTTPConnect"},
	{"http-connect over mtls", mtls, "HTTPConnect"},
}

// bySidecar has it ask a sidecar, and that the server.
var bySidecar = kind{"http-connect over a sidecar's uds", sidecar, "HTTPConnect"}

func uds(c *cluster) string { return fmt.Sprintf("        uds: {udsName: %s}", c.server.UDS) }

func sidecar(c *cluster) string { return fmt.Sprintf("        uds: {udsName: %s}", c.egress) }

func mtls(c *cluster) string {
	return fmt.Sprintf(`        tcp:
          url: https://%s
          tlsConfig: {caBundle: %s, clientCert: %s, clientKey: %s}`,
		suite.Loopback(c.server.ClientPort), c.suite.PKI("ca.crt"), c.suite.PKI("client.crt"), c.suite.PKI("client.key"))
}

// selection is a configuration for the one network context that matters here.
const selection = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
  - name: cluster
    connection:
      proxyProtocol: %s
      transport:
%s
`

// cluster is a server with two agents and a kubelet behind them.
type cluster struct {
	suite   *suite.Suite
	server  *suite.Server
	egress  string // unix socket of its sidecar
	agents  []*suite.Agent
	kubelet *kubelet
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{kubelet: newKubelet(t), suite: suite.ForTest(t, binaries)}
	c.server = testutil.Must(c.suite.StartServer("--graceful-shutdown-timeout=5s"))(t)
	for range 2 {
		c.addAgent(t)
	}
	c.egress = filepath.Join(c.suite.Dir, "egress")
	testutil.Must(c.suite.StartHTTPS(c.server, "--serving-uds="+c.egress))(t)
	return c
}

func (c *cluster) addAgent(t *testing.T) {
	t.Helper()
	a := testutil.Must(c.suite.StartAgent(c.server, "--graceful-shutdown-timeout=5s"))(t)
	c.agents = append(c.agents, a)
}

// dialer is kube-apiserver's own, made from a configuration file.
func (c *cluster) dialer(t *testing.T, k kind) dialFunc {
	t.Helper()
	file := filepath.Join(c.suite.Dir, strings.ReplaceAll(k.name, " ", "-")+".yaml")
	text := fmt.Sprintf(selection, k.protocol, k.transport(c))
	testutil.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	config := testutil.Must(egressselector.ReadEgressSelectorConfiguration(file))(t)
	faults := egressselector.ValidateEgressSelectorConfiguration(config)
	testutil.Requires(t, len(faults) <= 0, "%v", faults)
	selector := testutil.Must(egressselector.NewEgressSelector(config))(t)
	dial, err := selector.Lookup(egressselector.Cluster.AsNetworkContext())
	testutil.Requires(t, err == nil && dial != nil, "no dialer for the cluster %v", err)
	return dialFunc(dial)
}

// inEveryKind runs a test against one cluster by each kind.
func inEveryKind(t *testing.T, test func(t *testing.T, c *cluster, api *apiserver)) {
	inKinds(t, append(direct, bySidecar), test)
}

func inKinds(t *testing.T, kinds []kind, test func(t *testing.T, c *cluster, api *apiserver)) {
	c := newCluster(t)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			test(t, c, newAPIServer(t, c.dialer(t, k), c.kubelet))
		})
	}
}

// metric is the sum of a metric's samples.
func metric(t *testing.T, url, name string) (sum float64) {
	t.Helper()
	ctx := testutil.Context(t)
	req := testutil.Must(http.NewRequestWithContext(ctx, http.MethodGet, url, nil))(t)
	res := testutil.Must(http.DefaultClient.Do(req))(t)
	defer res.Body.Close()
	text := testutil.Must(io.ReadAll(res.Body))(t)
	samples := regexp.MustCompile(`(?m)^`+name+`(?:\{[^}]*\})? (\S+)$`).FindAllSubmatch(text, -1)
	testutil.Requires(t, len(samples) != 0, "%s has no %s", url, name)
	for _, s := range samples {
		v := testutil.Must(strconv.ParseFloat(string(s[1]), 64))(t)
		sum += v
	}
	return sum
}

// footprint is what an idle system holds.
type footprint struct {
	goroutines int // of this process, which holds kube-apiserver's half
	sockets    map[int]int
}

// measure counts goroutines here, and sockets of every program.
func (c *cluster) measure(t *testing.T) footprint {
	t.Helper()
	f := footprint{runtime.NumGoroutine(), map[int]int{}}
	for _, p := range c.running() {
		folder := fmt.Sprintf("/proc/%d/fd", p.PID())
		fds := testutil.Must(os.ReadDir(folder))(t)
		for _, fd := range fds {
			if to, err := os.Readlink(filepath.Join(folder, fd.Name())); err == nil && strings.HasPrefix(to, "socket:") {
				f.sockets[p.PID()]++
			}
		}
	}
	return f
}

// running are the programs that have not ended.
func (c *cluster) running() (all []*suite.Process) {
	for _, p := range c.suite.Processes() {
		select {
		case <-p.Done():
		default:
			all = append(all, p)
		}
	}
	return all
}

// slackGoroutines and slackSockets are what may differ from base at rest:
// runtime helpers, and this test's own look at the metrics.
const (
	slackGoroutines = 5
	slackSockets    = 2
)

// settle waits until nothing is left of what a test did.
func (c *cluster) settle(t *testing.T, base footprint) {
	t.Helper()
	left := c.leftovers(t, base)
	for end := time.Now().Add(patience); left != "" && time.Now().Before(end); left = c.leftovers(t, base) {
		time.Sleep(100 * time.Millisecond)
	}
	if left != "" {
		stacks := make([]byte, 1<<20)
		t.Fatalf("after %v still: %s\n%s", patience, left, stacks[:runtime.Stack(stacks, true)])
	}
}

func (c *cluster) leftovers(t *testing.T, base footprint) string {
	http.DefaultClient.CloseIdleConnections()
	var left []string
	for _, name := range []string{"established_connections", "pending_backend_dials"} {
		if n := metric(t, c.server.HealthURL("/metrics"), "konnectivity_network_proxy_server_"+name); n != 0 {
			left = append(left, fmt.Sprintf("%v %s", n, name))
		}
	}
	for _, a := range c.agents {
		if n := metric(t, a.HealthURL("/metrics"), "konnectivity_network_proxy_agent_open_endpoint_connections"); n != 0 {
			left = append(left, fmt.Sprintf("%v connections of an agent", n))
		}
	}
	if n := c.kubelet.open.Load(); n != 0 {
		left = append(left, fmt.Sprintf("%d requests at the kubelet", n))
	}
	http.DefaultClient.CloseIdleConnections()
	// The goroutines of what was just closed may wait for the processor.
	for end := time.Now().Add(time.Second); runtime.NumGoroutine() > base.goroutines+slackGoroutines && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
	now := c.measure(t)
	if now.goroutines > base.goroutines+slackGoroutines {
		left = append(left, fmt.Sprintf("%d goroutines, %d at first", now.goroutines, base.goroutines))
	}
	for pid, n := range now.sockets {
		if first, ok := base.sockets[pid]; ok && n > first+slackSockets {
			left = append(left, fmt.Sprintf("%d sockets of process %d, %d at first", n, pid, first))
		}
	}
	return strings.Join(left, ", ")
}
