package cluster

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// onlyTheTunnel lets the node and its pods out to the tunnel's port and nowhere else. What
// goes to a Service of the node's pods gets its way after this hook only.
const onlyTheTunnel = `
nsenter --net=/run/netns/nodes nft -f - <<EOF
table inet only {
	chain output {
		type filter hook output priority 0
		ip daddr 10.245.0.0/24 accept
		ip6 daddr fd00:245::/64 accept
		oifname outside ct state new ip daddr 203.0.113.7 tcp dport 8091 accept
		oifname outside ct state new drop
	}
	chain forward {
		type filter hook forward priority 0
		oifname outside ct state new drop
	}
}
EOF
`

// etcOfItsOwn has the test write in /etc without a trace.
const etcOfItsOwn = `
mkdir /run/etc
cp -a /etc/. /run/etc
mount --bind /run/etc /etc
`

// localAPI is where the node's programs find their API server.
const localAPI = "https://127.0.0.1:6443"

// TestNodeBootsByTheTunnel follows docs/one-name.md on a node with no other way out than the
// tunnel's port: it joins, and runs a pod that uses the Service kubernetes. It remains ready
// and runs pods while each server is killed.
func TestNodeBootsByTheTunnel(t *testing.T) {
	if !isolate(t) {
		return
	}
	node := bootByTheTunnel(t, "")
	w := node.world
	node.startProxy(localAPI)
	node.start("dnsmasq", "dnsmasq", "--keep-in-foreground", "--no-hosts", "--no-resolv", "--bind-interfaces", "--listen-address="+nodeIP, "--user=root",
		"--local=/cluster.local/", "--host-record=kubernetes.default.svc.cluster.local,10.97.0.1", "--pid-file="+node.dir+"/dnsmasq.pid", "--log-facility=-")
	w.nodes.do(byName, "apply", "-f", "-")
	w.nodes.do("", "create", "clusterrolebinding", "look", "--clusterrole=view", "--serviceaccount=default:default")
	w.lists("at-first")
	wait(t, "kubectl logs works", func() error {
		out, err := w.nodes.try("", "logs", "at-first")
		if err == nil && out != "service/kubernetes\n" {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	w.rolledOut()
	ready := w.readySince()
	w.killServers(w.lists)
	testutil.Equal(t, w.readySince(), ready, "the node is ready since")
	for _, url := range []string{w.nodes.url, controlURL} {
		testutil.Fails(t, node.asks(url), "the node asks %s without the tunnel", url)
	}
	const public = `{range .items[?(@.spec.type=="LoadBalancer")]}{.metadata.name} {.spec.ports[*].port}{end}`
	testutil.Equal(t, w.control.do("", "get", "services", "--all-namespaces", "-o", "jsonpath="+public),
		"konnectivity-server 8091", "load balancers")
}

// TestWatchesOutliveServers has an agent beside kube-apiserver. Watches of the node's programs
// go on while each server is killed.
func TestWatchesOutliveServers(t *testing.T) {
	if !isolate(t) {
		return
	}
	node := bootByTheTunnel(t, "agent")
	w := node.world
	w.rolledOut() // the kube-apiserver before ends its watches as it goes
	kubeconfig := w.nodes.userConfigAt(localAPI, "watcher", pki.Leaf{CommonName: "watcher", Organization: "system:masters"})
	var watches []*suite.Process
	for range 8 {
		p := must(suite.Start("kubectl", "nsenter", []string{"--net=" + nodesNet, program("kubectl"), "--kubeconfig=" + kubeconfig, "get", "configmaps", "--watch-only", "-o", "name"}, nil))(t)
		t.Cleanup(p.Kill)
		watches = append(watches, p)
	}
	seen := func(name string) {
		w.nodes.do("", "create", "configmap", name)
		for i, p := range watches {
			wait(t, fmt.Sprintf("watch %d tells of %s", i, name), func() error {
				out := p.Output()
				switch {
				case strings.Contains(out, "configmap/"+name+"\n"):
					return nil
				case tunnel.Closed(p.Done()):
					t.Fatalf("watch %d has ended: it says %q", i, lastLines(out))
				}
				return fmt.Errorf("it says %q", lastLines(out))
			})
		}
	}
	wait(t, "all watch", func() error {
		name := fmt.Sprint("first-", time.Now().UnixNano())
		w.nodes.do("", "create", "configmap", name)
		time.Sleep(time.Second)
		for i, p := range watches {
			if !strings.Contains(p.Output(), name) {
				return fmt.Errorf("%d does not", i)
			}
		}
		return nil
	})
	w.killServers(seen)
	for i, p := range watches { // kubectl ends with its watch
		testutil.Equal(t, strings.Count(p.Output(), "configmap/after-kill-"), 3,
			"what watch %d told of: %s", i, lastLines(p.Output()))
	}
}

// bootByTheTunnel follows docs/one-name.md, with server.apiServers as given; "": as the page
// has it. With "agent", an agent runs beside kube-apiserver.
func bootByTheTunnel(t *testing.T, apiServers string) *machine {
	w := newControlPlanes(t, "https://"+hiddenIP+":6443", "clusterIP: "+hiddenIP, "--advertise-address=172.20.0.1")
	shell(t, etcOfItsOwn)
	steps := fence.FindAllStringSubmatch(source(t, "docs/one-name.md"), -1)
	testutil.Requires(t, len(steps) == 4, "the page has %d steps", len(steps))
	dir := w.unpack()
	write(t, dir+"/my-node/kustomization.yaml", steps[0][1])
	node := w.nodes.newNode("node-1", nodeIP, nodeIP6, "245")
	node.load()
	for _, url := range []string{w.nodes.url, controlURL} {
		err := node.asks(url)
		testutil.Requires(t, err == nil, "%s is not reached before the way is closed: %v", url, err)
	}
	shell(t, onlyTheTunnel)
	install := steps[1][1]
	if apiServers != "" {
		install = strings.Replace(install, "server.apiServers={kube-apiserver:6443}", "server.apiServers={"+apiServers+"}", 1)
	}
	w.follow(install, "sh")
	if apiServers == "agent" {
		w.startBeside()
	}
	w.follow(steps[2][1], "nsenter", "--net="+nodesNet, "sh")
	began := time.Now()
	shell(t, `echo 'staticPodPath: /etc/kubernetes/manifests' >> "$1"`, node.dir+"/kubelet.yaml")
	node.runAt(localAPI)
	fmt.Printf("%5.1f s  until the node is ready\n", time.Since(began).Seconds())
	w.follow(steps[3][1], "nsenter", "--net="+nodesNet, "sh")
	return node
}

// startBeside runs an agent beside kube-apiserver, which knows the servers by their Service.
func (w *world) startBeside() {
	dir, host := w.clientFiles("beside")
	shell(w.t, `echo "$1 konnectivity-server-local" >> /etc/hosts`, host)
	w.start("agent", filepath.Join(w.installed, "bin", "konnectivity-agent"), "--api-server="+hiddenIP+":6443", "--agent-id=beside", "--proxy-server-host=konnectivity-server-local",
		"--ca-cert="+dir+"/ca.crt", "--agent-cert="+dir+"/tls.crt", "--agent-key="+dir+"/tls.key")
}

// byName leads kubectl to its API server by the Service's name.
const byName = `
apiVersion: v1
kind: ConfigMap
metadata: {name: by-name}
data:
  config: |
    apiVersion: v1
    kind: Config
    current-context: c
    clusters: [{name: c, cluster: {server: "https://kubernetes.default", certificate-authority: /var/run/secrets/kubernetes.io/serviceaccount/ca.crt}}]
    contexts: [{name: c, context: {cluster: c, user: u, namespace: default}}]
    users: [{name: u, user: {tokenFile: /var/run/secrets/kubernetes.io/serviceaccount/token}}]
`

// asks asks an API server from the node, whether it is ready.
func (m *machine) asks(url string) error {
	out, err := exec.Command("nsenter", "--net="+m.net, "curl", "--silent", "--show-error", "--insecure", "--fail", "--max-time", "5", url+"/readyz").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// lists has a pod on the node list Services by the name of the Service kubernetes.
func (w *world) lists(name string) {
	w.t.Helper()
	w.nodes.do(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: OnFailure # kube-proxy may not have been there yet
  containers:
    - name: kubectl
      image: registry.k8s.io/kubectl:v1.34.1
      args: [get, services, -o, name, --kubeconfig=/by-name/config]
      volumeMounts: [{name: by-name, mountPath: /by-name}]
  volumes: [{name: by-name, configMap: {name: by-name}}]
`, name), "apply", "-f", "-")
	wait(w.t, name+" has listed Services", func() error {
		out, err := w.nodes.try("", "get", "pod", name, "-o", "jsonpath={.status.phase}")
		if err == nil && out != "Succeeded" {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
}

// readySince is when the node has become ready, the last time.
func (w *world) readySince() string {
	w.t.Helper()
	return w.nodes.do("", "get", "node", "node-1", "-o", `jsonpath={range .status.conditions[?(@.type=="Ready")]}{.status} {.lastTransitionTime}{end}`)
}

// killServers kills each server in turn, has the node do something at once, and waits until
// the server is back.
func (w *world) killServers(does func(name string)) {
	t := w.t
	for i, pid := range serverPIDs(t) {
		testutil.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		began := time.Now()
		does(fmt.Sprint("after-kill-", i))
		fmt.Printf("%5.1f s  until it was done, after a server was killed\n", time.Since(began).Seconds())
		wait(t, "all servers are ready", func() error {
			out, err := w.control.try("", "-n", "my-control-plane", "get", "pods", "-l", "app.kubernetes.io/name=konnectivity-server", "-o", "jsonpath={.items[*].status.containerStatuses[*].ready}")
			if running := len(serverPIDs(t)); err == nil && (out != "true true true" || running != 3) {
				err = fmt.Errorf("ready: %s, and %d run", out, running)
			}
			return err
		})
	}
}

// serverPIDs are of the servers that run, in this test's namespace of processes.
func serverPIDs(t *testing.T) (found []int) {
	t.Helper()
	out, _ := exec.Command("pgrep", "--full", "^/usr/bin/konnectivity-server").Output() // fails where there is none
	for _, line := range strings.Fields(string(out)) {
		var pid int
		must(fmt.Sscan(line, &pid))(t)
		found = append(found, pid)
	}
	return found
}
