package apiserver

import (
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// Folders of the manifests. What kubeadm makes of server/static-pod is there
// as a stand-in.
const (
	hosted    = "server/hosted"
	staticPod = "check/testdata/static-pod"
)

// world is a control plane whose way to a data plane is two servers and two
// agents.
type world struct {
	*controlPlane
	*dataPlane
	servers []*server
	agents  []*agent
	front   *balancer // of the kube-apiservers
	service *balancer // of the servers' port for clients; nil in pods
	sidecar *suite.Process
	pods    bool // each server is in one pod with a kube-apiserver
}

// newStaticPods is kubeadm's way with two control plane nodes: each
// kube-apiserver has a server beside it and speaks gRPC over a unix socket,
// agents come by token, and leases count servers.
func newStaticPods(t *testing.T) *world {
	p := newControlPlane(t)
	w := &world{controlPlane: p, front: newBalancer(t, false), pods: true}
	for i := range 2 {
		a := p.addAPI(replaced(t, "server/static-pod/egress-selector-configuration.yaml", "/run/konnectivity/", p.file(fmt.Sprint(i))))
		w.front.add(a.port, func() bool { return p.ready(a) })
	}
	p.do("apply", "--validate=strict", "-k", manifests+"/server/static-pod")
	p.do("apply", "--validate=strict", "-k", manifests+"/agent/daemonset-token-leases")
	// kubeadm writes the endpoint of all control plane nodes. So another
	// kube-apiserver reviews the tokens of agents that come back to a pod, while
	// the pod's own still starts. Were it asked, they might come too late for it: it
	// tries aggregated APIs for 5 s, and then has none use them for a moment.
	kubeconfig := p.clientOf("system:konnectivity-server", w.front.port)
	for i := range p.apis {
		w.servers = append(w.servers, p.newServer(staticPod, map[string]string{
			"$(NODE_NAME)": fmt.Sprintf("master-%d", i), "/run/konnectivity/": p.file(fmt.Sprint(i)),
			"/etc/kubernetes/konnectivity/pki/": p.suite.PKI("") + "/", "/etc/kubernetes/konnectivity/kubeconfig": kubeconfig,
		}))
	}
	w.dataPlane = newDataPlane(t, p)
	token := p.do("create", "token", "-n", "kube-system", "konnectivity-agent", "--audience=system:konnectivity-server")
	account := p.do("create", "token", "-n", "kube-system", "konnectivity-agent")
	w.addAgents("agent/daemonset-token-leases", map[string]string{
		"/etc/konnectivity/agent/token": p.write("token", []byte(token)), "/etc/konnectivity/agent/ca.crt": p.suite.PKI("ca.crt"),
	}, "--kubeconfig="+p.userConfig("konnectivity-agent", w.front.port, "token: "+strings.TrimSpace(account)))
	return w
}

// newHosted is a control plane of pods: kube-apiserver asks a Service of two
// servers by HTTP CONNECT over mTLS, and agents come by certificate.
func newHosted(t *testing.T) *world {
	return newHostedBy(t, func(w *world) string {
		return replaced(t, "server/hosted/egress-selector-configuration.yaml", "konnectivity-server-local:8090", suite.Loopback(w.service.port),
			"/etc/kubernetes/konnectivity-client/ca.crt", w.suite.PKI("ca.crt"), "/etc/kubernetes/konnectivity-client/tls.crt", w.suite.PKI("client.crt"),
			"/etc/kubernetes/konnectivity-client/tls.key", w.suite.PKI("client.key"))
	})
}

// newHostedBy has kube-apiserver go the way that egress prepares and configures.
func newHostedBy(t *testing.T, egress func(*world) string) *world {
	p := newControlPlane(t)
	w := &world{controlPlane: p, front: newBalancer(t, false), service: newBalancer(t, true)}
	a := p.addAPI(egress(w))
	w.front.add(a.port, func() bool { return true })
	p.do("create", "namespace", "my-control-plane")
	p.do("-n", "my-control-plane", "apply", "--validate=strict", "-k", manifests+"/server/hosted")
	p.do("apply", "--validate=strict", "-k", manifests+"/agent/daemonset")
	account := strings.TrimSpace(p.do("create", "token", "-n", "my-control-plane", "konnectivity-server"))
	for i := range 2 {
		in := map[string]string{"$(POD_NAME)": fmt.Sprintf("konnectivity-server-%d", i), "$(POD_NAMESPACE)": "my-control-plane"}
		for _, role := range []string{"server", "cluster"} {
			dir := "/etc/konnectivity/" + role + "/"
			in[dir+"ca.crt"], in[dir+"tls.crt"], in[dir+"tls.key"] = p.suite.PKI("ca.crt"), p.suite.PKI(role+".crt"), p.suite.PKI(role+".key")
		}
		port := testutil.Reserved(t)
		s := p.newServer(hosted, in, "--server-bind-address=127.0.0.1", "--server-port="+strconv.Itoa(port),
			"--kubeconfig="+p.userConfig("konnectivity-server", a.port, "token: "+account)) // in place of the pod's own
		w.service.add(port, s.endpoint.Load)
		w.servers = append(w.servers, s)
	}
	w.dataPlane = newDataPlane(t, p)
	w.addAgents("agent/daemonset", map[string]string{"/etc/konnectivity/agent/ca.crt": p.suite.PKI("ca.crt"),
		"/etc/konnectivity/agent/tls.crt": p.suite.PKI("agent.crt"), "/etc/konnectivity/agent/tls.key": p.suite.PKI("agent.key")})
	for _, s := range w.servers {
		w.join(s)
	}
	return w
}

// frontURL is where clients find a kube-apiserver.
func (w *world) frontURL() string { return "https://" + suite.Loopback(w.front.port) }

// addAgents starts two.
func (w *world) addAgents(folder string, in map[string]string, more ...string) {
	var hosts []string
	for _, s := range w.servers {
		hosts = append(hosts, suite.Loopback(s.AgentPort))
	}
	for i := range 2 {
		own := map[string]string{"$(AGENT_ID)": fmt.Sprintf("konnectivity-agent-%d", i), "$(SERVER_HOST)": strings.Join(hosts, ","),
			"$(SERVER_PORT)": "8091", "$(IDENTIFIERS)": "default-route=true"}
		maps.Copy(own, in)
		a := &agent{folder: folder, in: own, more: more}
		w.agents = append(w.agents, a)
		w.startAgent(w.dataPlane, a)
	}
}

func TestStaticPods(t *testing.T) {
	w := newStaticPods(t)
	t.Run("tokens", w.tokens)
	w.test(t)
}

func TestHosted(t *testing.T) {
	w := newHosted(t)
	w.test(t)
	t.Run("sidecars", w.sidecars)
	t.Run("kubectl by sidecars", w.kubectlBySidecars)
}

func (w *world) test(t *testing.T) {
	t.Run("roles", w.roles)
	t.Run("before", w.everything)
	t.Run("rolling restart", w.rollOver)
	t.Run("after", w.everything)
	t.Run("leases", w.leases)
}
