package cluster

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/apiserver"
	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// Addresses. Of the two machines, that of nodes lets nothing in that it has not
// asked for. Everything has an address of either family.
const (
	controlIP  = "192.0.2.1"   // of the first cluster's node
	outsideIP  = "203.0.113.7" // where nodes find Services of type LoadBalancer
	nodeIP     = "203.0.113.8" // of the second cluster's node
	controlIP6 = "2001:db8:1::1"
	outsideIP6 = "2001:db8::7"
	nodeIP6    = "2001:db8::8"
	nodesNet   = "/run/netns/nodes"
	etcdURL    = "http://" + controlIP + ":2379"
	controlURL = "https://" + controlIP + ":6443"
	nodesURL   = "https://" + outsideIP + ":6443"
	hiddenIP   = "10.96.0.64" // of the second cluster's API server, where it is inside the first
)

// network is two machines with a wire between them.
const network = `
mount -t tmpfs tmpfs /run
mkdir -p /run/netns /run/lock
mount -t tmpfs tmpfs /var/log
echo 1 > /proc/sys/net/ipv4/ip_forward
echo 1 > /proc/sys/net/ipv6/conf/all/forwarding
ip link set lo up
ip netns add nodes
ip -n nodes link set lo up
ip link add outside type veth peer name outside netns nodes
ip address add 203.0.113.7/24 dev outside
ip address add 2001:db8::7/64 dev outside nodad
ip link set outside up
ip -n nodes address add 203.0.113.8/24 dev outside
ip -n nodes address add 2001:db8::8/64 dev outside nodad
ip -n nodes link set outside up
ip -n nodes route add default via 203.0.113.7
ip -n nodes route add default via 2001:db8::7
ip address add 192.0.2.1/32 dev lo
ip address add 2001:db8:1::1/128 dev lo
ip route add default via 203.0.113.8
ip route add default via 2001:db8::8
nsenter --net=/run/netns/nodes sh -c 'echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding'
nsenter --net=/run/netns/nodes nft -f - <<EOF
table inet closed {
	chain input {
		type filter hook input priority 0
		iifname outside ct state new reject with tcp reset
	}
	chain forward {
		type filter hook forward priority 0
		iifname outside ct state new reject with tcp reset
	}
}
EOF
`

// world is both clusters.
type world struct {
	t         *testing.T
	dir       string
	control   *cluster
	nodes     *cluster
	installed string // folder with the release's programs in bin
}

// cluster is a control plane, and what administers it.
type cluster struct {
	*world
	name       string
	url        string // of its kube-apiserver
	ca         *pki.CA
	dir        string // keys and certificates
	kubeconfig string // the administrator's
}

func newWorld(t *testing.T) *world {
	w := newControlPlanes(t, nodesURL, "type: LoadBalancer", "--advertise-address="+outsideIP, "--endpoint-reconciler-type=none")
	other := w.nodes.newNode("node-1", nodeIP, nodeIP6, "245")
	other.run()
	other.load()
	return w
}

// newControlPlanes is a world without the second cluster's node. Its kube-apiserver has these
// further flags, and is behind a Service with these fields, at url.
func newControlPlanes(t *testing.T, url, service string, flags ...string) *world {
	shell(t, network)
	w := &world{t: t, dir: must(os.MkdirTemp("/run", "k"))(t)} // short: unix sockets live in it
	w.control, w.nodes = w.newCluster("control", controlURL), w.newCluster("nodes", url)
	etcd := w.start("etcd", program("etcd"), "--data-dir="+w.dir+"/etcd", "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL, "--listen-peer-urls=http://127.0.0.1:0")
	testutil.NoError(t, suite.WaitReady(etcd, etcdURL+"/health"))
	w.start("kube-apiserver", program("kube-apiserver"), w.control.apiFlags(w.control.dir, "/control", "10.96.0.0/16,fd00:96::/112", "--bind-address="+controlIP, "--advertise-address="+controlIP)...)
	w.control.ready()
	t.Cleanup(w.explain)
	w.control.startControllers()
	w.startDNS()
	w.startCloud()
	machine := w.control.newNode("control", controlIP, controlIP6, "244")
	machine.startProxy(controlURL)
	machine.run()
	machine.load()
	w.runControlPlaneOfNodes(service, flags)
	w.nodes.startControllers()
	return w
}

func (w *world) newCluster(name, url string) *cluster {
	w.t.Helper()
	c := &cluster{world: w, name: name, url: url, dir: filepath.Join(w.dir, name), ca: must(pki.NewCA(name))(w.t)}
	write(w.t, c.dir+"/ca.crt", string(c.ca.CertPEM))
	ips := []net.IP{net.ParseIP(controlIP), net.ParseIP(outsideIP), net.ParseIP(hiddenIP), net.ParseIP("127.0.0.1"), net.ParseIP("10.96.0.1"), net.ParseIP("10.97.0.1")}
	c.issue("apiserver", pki.Leaf{CommonName: "kube-apiserver", DNS: []string{"kubernetes.default"}, IPs: ips, Server: true})
	c.issue("service-accounts", pki.Leaf{CommonName: "service-accounts"})
	c.issue("kubelet-client", pki.Leaf{CommonName: "kube-apiserver-kubelet-client", Client: true})
	c.kubeconfig = c.userConfig("admin", pki.Leaf{CommonName: "admin", Organization: "system:masters"})
	return c
}

func (c *cluster) issue(name string, leaf pki.Leaf) {
	c.t.Helper()
	pair := must(c.ca.Issue(leaf))(c.t)
	write(c.t, filepath.Join(c.dir, name+".crt"), string(pair.CertPEM))
	write(c.t, filepath.Join(c.dir, name+".key"), string(pair.KeyPEM))
}

// userConfig writes a kubeconfig file.
func (c *cluster) userConfig(name string, leaf pki.Leaf) string {
	c.t.Helper()
	return c.userConfigAt(c.url, name, leaf)
}

// userConfigAt is userConfig for one who finds the API server elsewhere.
func (c *cluster) userConfigAt(url, name string, leaf pki.Leaf) string {
	c.t.Helper()
	leaf.Client = true
	c.issue(name, leaf)
	return write(c.t, filepath.Join(c.dir, name+".kubeconfig"), fmt.Sprintf("apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
		"clusters: [{name: c, cluster: {server: %q, certificate-authority: %[2]s/ca.crt}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {client-certificate: %[2]s/%[3]s.crt, client-key: %[2]s/%[3]s.key}}]\n",
		url, c.dir, name))
}

// apiFlags are a kube-apiserver's, whose files are in dir.
func (c *cluster) apiFlags(dir, prefix, services string, more ...string) []string {
	return append([]string{
		"--etcd-servers=" + etcdURL, "--etcd-prefix=" + prefix, "--secure-port=6443", "--service-cluster-ip-range=" + services,
		"--tls-cert-file=" + dir + "/apiserver.crt", "--tls-private-key-file=" + dir + "/apiserver.key", "--client-ca-file=" + dir + "/ca.crt",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction", "--allow-privileged", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + dir + "/service-accounts.crt", "--service-account-signing-key-file=" + dir + "/service-accounts.key",
		"--kubelet-certificate-authority=" + dir + "/ca.crt", "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + dir + "/kubelet-client.crt", "--kubelet-client-key=" + dir + "/kubelet-client.key",
		"--proxy-client-cert-file=" + dir + "/kubelet-client.crt", "--proxy-client-key-file=" + dir + "/kubelet-client.key",
		"--requestheader-client-ca-file=" + dir + "/ca.crt", "--requestheader-allowed-names=kube-apiserver-kubelet-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
	}, more...)
}

func (c *cluster) ready() {
	c.t.Helper()
	wait(c.t, "kube-apiserver of "+c.name+" is ready", func() error { _, err := c.try("", "get", "--raw", "/readyz"); return err })
}

// startControllers starts what turns objects into pods.
func (c *cluster) startControllers() {
	c.start("kube-controller-manager", program("kube-controller-manager"), "--kubeconfig="+c.kubeconfig, "--leader-elect=false", "--secure-port=0",
		"--root-ca-file="+c.dir+"/ca.crt", "--service-account-private-key-file="+c.dir+"/service-accounts.key", "--use-service-account-credentials=false")
	c.start("kube-scheduler", program("kube-scheduler"), "--kubeconfig="+c.kubeconfig, "--leader-elect=false", "--secure-port=0")
}

// start runs a program until the test ends.
func (w *world) start(name, path string, args ...string) *suite.Process {
	w.t.Helper()
	p := must(suite.Start(name, path, args, nil))(w.t)
	w.t.Cleanup(func() {
		p.Kill()
		if w.t.Failed() {
			w.t.Logf("--- %s %s\n%s", name, strings.Join(args[:min(2, len(args))], " "), lastLines(p.Output()))
		}
	})
	return p
}

// try runs kubectl as an administrator does, and returns what it prints.
func (c *cluster) try(stdin string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // cleanups ask, too
	defer cancel()
	cmd := exec.CommandContext(ctx, program("kubectl"), args...)
	cmd.Env = []string{"KUBECONFIG=" + c.kubeconfig, "HOME=" + c.world.dir}
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// do is try for what must work.
func (c *cluster) do(stdin string, args ...string) string {
	c.t.Helper()
	return must(c.try(stdin, args...))(c.t)
}

// startDNS answers for the Services of the first cluster.
func (w *world) startDNS() {
	hosts := w.dir + "/hosts"
	write(w.t, hosts+"/services", "")
	w.start("dnsmasq", "dnsmasq", "--keep-in-foreground", "--no-hosts", "--no-resolv", "--bind-interfaces", "--listen-address="+controlIP, "--user=root",
		"--local=/cluster.local/", "--pid-file="+w.dir+"/dnsmasq.pid", "--hostsdir="+hosts, "--log-facility=-")
	w.every(func() {
		const names = `{range .items[*]}{.spec.clusterIP} {.metadata.name}.{.metadata.namespace}.svc.cluster.local{"\n"}{end}`
		out, err := w.control.try("", "get", "services", "--all-namespaces", "-o", "jsonpath="+names)
		before, _ := os.ReadFile(hosts + "/services")
		if err == nil && out != string(before) {
			_ = os.WriteFile(hosts+"/services", []byte(out), 0o644)
		}
	})
}

// startCloud gives Services of type LoadBalancer their address.
func (w *world) startCloud() {
	w.every(func() {
		const names = `{range .items[?(@.spec.type=="LoadBalancer")]}{.metadata.namespace} {.metadata.name} {.status.loadBalancer.ingress}{"\n"}{end}`
		out, _ := w.control.try("", "get", "services", "--all-namespaces", "-o", "jsonpath="+names)
		for line := range strings.Lines(out) {
			if f := strings.Fields(line); len(f) == 2 {
				_, _ = w.control.try("", "patch", "service", "-n", f[0], f[1], "--subresource=status", "--type=merge",
					"-p", `{"status": {"loadBalancer": {"ingress": [{"ip": "`+outsideIP+`"}, {"ip": "`+outsideIP6+`"}]}}}`)
			}
		}
	})
}

// every does something each second until the test ends.
func (w *world) every(do func()) {
	ctx, done := w.t.Context(), make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			do()
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
			}
		}
	}()
	w.t.Cleanup(func() { <-done })
}

// runControlPlaneOfNodes runs the second cluster's kube-apiserver as a pod of the
// first, as the README has it.
func (w *world) runControlPlaneOfNodes(service string, flags []string) {
	w.t.Helper()
	w.control.do("", "create", "namespace", "my-control-plane")
	args := []string{"create", "secret", "generic", "kube-apiserver", "-n", "my-control-plane"}
	for _, name := range []string{"ca.crt", "apiserver.crt", "apiserver.key", "service-accounts.crt", "service-accounts.key", "kubelet-client.crt", "kubelet-client.key"} {
		args = append(args, "--from-file="+w.nodes.dir+"/"+name)
	}
	w.control.do("", args...)
	command := append([]string{"kube-apiserver"}, w.nodes.apiFlags("/etc/kubernetes/pki", "/nodes", "10.97.0.0/16,fd00:97::/112",
		append(flags, "--shutdown-delay-duration=10s")...)...) // until its Service no longer leads to it
	w.control.do(fmt.Sprintf(apiServerService, service)+apiserver.APIServerPod(command, "readinessProbe: {httpGet: {path: /readyz, port: 6443, scheme: HTTPS}, periodSeconds: 1, timeoutSeconds: 10}"), "apply", "-f", "-")
	w.nodes.ready()
}

// apiServerService is how it is reached.
const apiServerService = `
apiVersion: v1
kind: Service
metadata: {name: kube-apiserver, namespace: my-control-plane}
spec: {%s, selector: {app: kube-apiserver}, ports: [{port: 6443}]}
`
