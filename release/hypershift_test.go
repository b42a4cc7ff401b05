package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// world is HyperShift's control plane and nodes, as far as konnectivity goes:
// command lines, environments, mounts and probes are those of its manifests
// (openshift/hypershift, control-plane-operator/.../v2/assets).
type world struct {
	*runtimes
	*network
	t      *testing.T
	folder string
	hosts  string
}

func newWorld(t *testing.T) *world {
	w := &world{runtimes: newRuntime(t), t: t, folder: t.TempDir()}
	w.network = newNetwork(t)
	w.hosts = filepath.Join(w.folder, "hosts")
	archive := unpack(t, artefact(t, "konnectivity_*.tar.gz"))
	command(t, filepath.Join(archive, "konnectivity"), "certs", filepath.Join(w.folder, "pki"), "--server-san=konnectivity-server-local", "--cluster-san=konnectivity-server")
	for _, copy := range [][2]string{
		{"ca/ca.crt", "ca.crt"}, {"server/tls.crt", "server.crt"}, {"server/tls.key", "server.key"},
		{"cluster/tls.crt", "cluster.crt"}, {"cluster/tls.key", "cluster.key"}, {"agent/tls.crt", "agent.crt"}, {"agent/tls.key", "agent.key"},
		{"client/tls.crt", "client.crt"}, {"client/tls.key", "client.key"},
	} {
		content := must(os.ReadFile(filepath.Join(w.folder, "pki", copy[1])))(t)
		w.write(copy[0], string(content))
	}
	w.write("kubeconfig/kubeconfig", "apiVersion: v1\nkind: Config\nclusters: [{name: c, cluster: {server: 'https://kube-apiserver:6443'}}]\n"+
		"users: [{name: u, user: {token: t}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\ncurrent-context: x\n")
	return w
}

// write makes a file as a volume has it: readable by the pod's fsGroup.
func (w *world) write(path, content string) {
	w.t.Helper()
	path = filepath.Join(w.folder, path)
	noError(w.t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o640), os.Chown(path, 0, 65532)))
}

// run starts a container whose mounts are folders of the world.
func (w *world) run(pod string, env []string, mounts map[string]string, command ...string) string {
	w.t.Helper()
	all := map[string]string{"/etc/hosts": w.hosts}
	for to, from := range mounts {
		all[to] = filepath.Join(w.folder, from)
	}
	return w.start(container{image: "konnectivity-hypershift", command: command, env: env, mounts: all, pod: pod})
}

// healthy is an httpGet probe.
func (w *world) healthy(pod, address, path string) {
	w.t.Helper()
	eventually(w.t, path+" of "+pod, func() error {
		return in(w.t, pod, "curl", "--silent", "--show-error", "--fail", "--max-time", "5", "--noproxy", "*", "http://"+address+path)
	})
}

func (w *world) server() (name, address string) {
	pod, address := w.pod("kube-apiserver")
	w.write("hosts", address+" konnectivity-server-local konnectivity-server\n127.0.0.1 localhost\n")
	name = w.run(pod, nil, map[string]string{"/etc/konnectivity/cluster": "cluster", "/etc/konnectivity/ca": "ca", "/etc/konnectivity/server": "server"},
		"/usr/bin/proxy-server", "--logtostderr=true", "--log-file-max-size=0",
		"--cluster-cert", "/etc/konnectivity/cluster/tls.crt", "--cluster-key", "/etc/konnectivity/cluster/tls.key",
		"--server-cert", "/etc/konnectivity/server/tls.crt", "--server-key", "/etc/konnectivity/server/tls.key", "--server-ca-cert", "/etc/konnectivity/ca/ca.crt",
		"--server-port", "8090", "--agent-port", "8091", "--health-port", "2041", "--admin-port=8093",
		"--mode=http-connect", "--proxy-strategies=destHost,defaultRoute", "--keepalive-time", "30s", "--frontend-keepalive-time", "30s")
	w.healthy(pod, address+":2041", "/healthz")
	return name, address
}

func (w *world) agent() {
	pod, address := w.pod("konnectivity-agent")
	w.run(pod, []string{"HTTPS_PROXY=http://proxy.invalid:3128", "NO_PROXY=konnectivity-server"},
		map[string]string{"/etc/konnectivity/agent": "agent", "/etc/konnectivity/ca": "ca"},
		"/usr/bin/proxy-agent", "--logtostderr=true", "--ca-cert", "/etc/konnectivity/ca/ca.crt",
		"--agent-cert", "/etc/konnectivity/agent/tls.crt", "--agent-key", "/etc/konnectivity/agent/tls.key",
		"--proxy-server-host", "konnectivity-server", "--proxy-server-port", "8091", "--health-server-port", "2041",
		"--agent-identifiers=default-route=true", "--keepalive-time", "30s", "--probe-interval", "5s",
		"--sync-interval", "5s", "--sync-interval-cap", "30s", "--sync-forever", "--v", "3")
	w.healthy(pod, address+":2041", "/healthz")
	w.healthy(pod, address+":2041", "/readyz")
}

// consumer is a pod that has sidecars.
type consumer struct {
	name     string
	sidecars [][]string // arguments of control-plane-operator
	env      []string   // of the pod's own program
	dials    string     // the proxy that it uses without a variable
}

// kubeconfig returns the path of a sidecar's kubeconfig. The network operator's
// deployment has a path of its own.
func (c consumer) kubeconfig() string {
	if c.name == "ovnkube-control-plane" {
		return "/etc/kubernetes"
	}
	return "/etc/kubernetes/secrets/kubeconfig"
}

// proxies returns the proxies to the nodes of the pod's program, in curl's notation:
// Go's socks5 leaves names to the proxy.
func (c consumer) proxies() (all []string) {
	for _, e := range c.env {
		name, proxy, _ := strings.Cut(e, "=")
		if strings.HasSuffix(name, "_PROXY") && !strings.HasPrefix(name, "MGMT_") && name != "NO_PROXY" {
			all = append(all, strings.Replace(proxy, "socks5:", "socks5h:", 1))
		}
	}
	if c.dials != "" {
		all = append(all, c.dials)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

var consumers = []consumer{
	{name: "openshift-apiserver", sidecars: [][]string{{"konnectivity-https-proxy", "run"}},
		env: []string{"HTTP_PROXY=http://127.0.0.1:8090", "HTTPS_PROXY=http://127.0.0.1:8090", "NO_PROXY=kube-apiserver,etcd-client,audit-webhook"}},
	// With a customer's proxy, and an empty URL for HTTP.
	{name: "openshift-apiserver-proxied", sidecars: [][]string{{"konnectivity-https-proxy", "run",
		"--http-proxy", "", "--https-proxy", "http://proxy.invalid:3128", "--no-proxy", ".cluster.local,.svc,127.0.0.1,localhost"}},
		env: []string{"HTTP_PROXY=http://127.0.0.1:8090", "HTTPS_PROXY=http://127.0.0.1:8090", "NO_PROXY=kube-apiserver,etcd-client,audit-webhook"}},
	{name: "ingress-operator", sidecars: [][]string{{"konnectivity-https-proxy", "run", "--connect-directly-to-cloud-apis=true"}},
		env: []string{"HTTP_PROXY=http://127.0.0.1:8090", "HTTPS_PROXY=http://127.0.0.1:8090", "NO_PROXY=kube-apiserver"}},
	{name: "oauth-openshift", sidecars: [][]string{
		{"konnectivity-https-proxy", "run", "--serving-port=8092", "--connect-directly-to-cloud-apis=true"},
		{"konnectivity-socks5-proxy", "run", "--resolve-from-guest-cluster-dns=true", "--resolve-from-management-cluster-dns=true"}},
		env: []string{"HTTP_PROXY=http://127.0.0.1:8092", "HTTPS_PROXY=http://127.0.0.1:8092", "ALL_PROXY=socks5://127.0.0.1:8090", "NO_PROXY=kube-apiserver,audit-webhook"}},
	{name: "oauth-apiserver", sidecars: [][]string{{"konnectivity-socks5-proxy", "run", "--resolve-from-guest-cluster-dns=true"}},
		env: []string{"HTTP_PROXY=socks5://127.0.0.1:8090", "HTTPS_PROXY=socks5://127.0.0.1:8090", "NO_PROXY=kube-apiserver,etcd-client,audit-webhook"}},
	{name: "cluster-network-operator", sidecars: [][]string{{"konnectivity-socks5-proxy", "run", "--disable-resolver=true"}},
		env: []string{"MGMT_HTTP_PROXY=http://proxy.invalid:3128", "MGMT_HTTPS_PROXY=http://proxy.invalid:3128", "MGMT_NO_PROXY=kube-apiserver"}, dials: "socks5h://127.0.0.1:8090"},
	{name: "ovnkube-control-plane", sidecars: [][]string{{"konnectivity-socks5-proxy", "run"}},
		env: []string{"ALL_PROXY=socks5://127.0.0.1:8090", "NO_PROXY=kube-apiserver"}},
	{name: "olm-operator", sidecars: [][]string{{"konnectivity-socks5-proxy", "run"}},
		env: []string{"GRPC_PROXY=socks5://127.0.0.1:8090", "NO_PROXY=kube-apiserver"}},
	{name: "catalog-operator", sidecars: [][]string{{"konnectivity-socks5-proxy", "run"}},
		env: []string{"GRPC_PROXY=socks5://127.0.0.1:8090", "NO_PROXY=kube-apiserver"}},
	{name: "packageserver", sidecars: [][]string{{"konnectivity-socks5-proxy", "run"}},
		env: []string{"GRPC_PROXY=socks5://127.0.0.1:8090", "NO_PROXY=kube-apiserver"}},
}

func TestHyperShift(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	server, _ := w.server()
	w.agent()
	for _, c := range consumers {
		w.consume(c)
	}
	w.preStop(server)
	if out := w.says("konnectivity-hypershift", "pretend", "/usr/bin/konnectivity", "--version"); out == "" {
		t.Error("the tool says nothing")
	}
	if out, err := w.try("run", "--rm", "docker.io/library/konnectivity-hypershift:"+w.version, "else",
		"/usr/bin/control-plane-operator", "kas-bootstrap"); err == nil {
		t.Errorf("it pretends to be all of the control-plane-operator: %s", out)
	}
	w.onHyperShiftsOwn()
}

// onHyperShiftsOwn runs the image that docs/hypershift.md builds, as far as that
// differs: the program that ours has replaced serves all that ours does not.
func (w *world) onHyperShiftsOwn() {
	w.t.Helper()
	const original = "control-plane-operator.hypershift"
	w.write(original, "#!/bin/sh\necho HyperShift does $*\n")
	noError(w.t, os.Chmod(filepath.Join(w.folder, original), 0o755))
	mount := "type=bind,src=" + filepath.Join(w.folder, original) + ",dst=/usr/bin/" + original + ",options=rbind:ro"
	equal(w.t, w.saysWith([]string{"--mount", mount}, "konnectivity-hypershift", "original", "/usr/bin/control-plane-operator", "kas-bootstrap", "--x=1"),
		"HyperShift does kas-bootstrap --x=1\n", "what is HyperShift's")
	out := w.saysWith([]string{"--mount", mount}, "konnectivity-hypershift", "replaced", "/usr/bin/control-plane-operator", "konnectivity-socks5-proxy", "--version")
	contains(w.t, out, "konnectivity-socks5-proxy version "+w.version, "what is ours")
}

// consume starts a pod's sidecars, waits for a startup probe by TCP at the pod's
// address, and reaches the agent's own loopback by each of them.
func (w *world) consume(c consumer) {
	w.t.Helper()
	pod, address := w.pod(c.name)
	for _, sidecar := range c.sidecars {
		mounts := map[string]string{c.kubeconfig(): "kubeconfig", "/etc/konnectivity/proxy-client": "client", "/etc/konnectivity/proxy-ca": "ca"}
		if slices.Contains(sidecar, "--https-proxy") {
			mounts["/etc/pki/tls/certs/additional-ca-bundle.pem"] = "ca/ca.crt"
		}
		w.run(pod, []string{"KUBECONFIG=" + c.kubeconfig() + "/kubeconfig"}, mounts, append([]string{"/usr/bin/control-plane-operator"}, sidecar...)...)
	}
	for _, proxy := range c.proxies() {
		port := proxy[strings.LastIndexByte(proxy, ':')+1:]
		eventually(w.t, "startup probe of "+c.name, func() error {
			return in(w.t, pod, "bash", "-c", "exec 3<>/dev/tcp/"+address+"/"+port)
		})
		through := func(proxy string) error {
			return in(w.t, pod, "curl", "--silent", "--show-error", "--fail", "--max-time", "10", "--noproxy", "", "--proxy", proxy, "http://127.0.0.1:2041/readyz")
		}
		eventually(w.t, c.name+" by "+proxy, func() error { return through(proxy) })
		if other := strings.Replace(proxy, "127.0.0.1", address, 1); through(other) == nil {
			w.t.Errorf("%s: another pod may use the tunnel by %s", c.name, other)
		}
	}
}

// preStop is the server's hook: it needs a shell, and its sleep must last.
func (w *world) preStop(server string) {
	w.t.Helper()
	start := time.Now()
	hook := append(append([]string{"2", "ctr"}, w.own()...), "task", "exec", "--exec-id", "preStop", server, "/bin/sh", "-c", "sleep 70")
	out, _ := try(w.t, "timeout", hook...) // which has ended it, as intended
	holds(w.t, time.Since(start) >= 2*time.Second, "the preStop hook ended at once: %s", out)
	equal(w.t, w.ctr("task", "exec", "--exec-id", "short", server, "/bin/sh", "-c", "sleep 0.1 && echo slept"), "slept\n",
		"a shell in the image")
}
