package cluster

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/pki"
)

// onlyTheTunnel lets the node and its pods out to the tunnel's port and nowhere else.
const onlyTheTunnel = `
nsenter --net=/run/netns/nodes nft -f - <<EOF
table inet only {
	chain output {
		type filter hook output priority 0
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
	w := newControlPlanes(t, "https://"+hiddenIP+":6443", "clusterIP: "+hiddenIP, "--advertise-address=172.20.0.1")
	shell(t, etcOfItsOwn)
	steps := fence.FindAllStringSubmatch(source(t, "docs/one-name.md"), -1)
	if len(steps) != 4 {
		t.Fatalf("the page has %d steps", len(steps))
	}
	dir := w.unpack()
	write(t, dir+"/my-node/kustomization.yaml", steps[0][1])
	node := w.nodes.newNode("node-1", nodeIP, "pods", "10.245.0")
	node.load()

	direct := []string{w.nodes.url, controlURL}
	for _, url := range direct {
		if err := node.asks(url); err != nil {
			t.Fatalf("%s is not reached before the way is closed: %v", url, err)
		}
	}
	shell(t, onlyTheTunnel)
	w.follow(steps[1][1], "sh")
	w.follow(steps[2][1], "nsenter", "--net="+nodesNet, "sh")
	began := time.Now()
	shell(t, `echo 'staticPodPath: /etc/kubernetes/manifests' >> "$1"`, node.dir+"/kubelet.yaml")
	node.runAt(localAPI)
	fmt.Printf("%5.1f s  until the node is ready\n", time.Since(began).Seconds())
	w.follow(steps[3][1], "nsenter", "--net="+nodesNet, "sh")
	proxy := w.nodes.userConfigAt(localAPI, "proxy", pki.Leaf{CommonName: "system:kube-proxy"})
	node.start("kube-proxy", program("kube-proxy"), "--kubeconfig="+proxy, "--proxy-mode=iptables", "--conntrack-max-per-core=0", "--cluster-cidr=10.245.0.0/16", "--hostname-override=node-1")

	w.nodes.do("", "create", "clusterrolebinding", "look", "--clusterrole=view", "--serviceaccount=default:default")
	w.lists("at-first")
	wait(t, "kubectl logs works", func() error {
		out, err := w.nodes.try("", "logs", "at-first")
		if err == nil && out != "service/kubernetes\n" {
			err = fmt.Errorf("it is %q", out)
		}
		return err
	})
	ready := w.readySince()
	w.killServers()
	if now := w.readySince(); now != ready {
		t.Errorf("the node was ready since %s, and is since %s", ready, now)
	}
	for _, url := range direct {
		if err := node.asks(url); err == nil {
			t.Errorf("the node reaches %s without the tunnel", url)
		}
	}
	const public = `{range .items[?(@.spec.type=="LoadBalancer")]}{.metadata.name} {.spec.ports[*].port}{end}`
	if got := w.control.do("", "get", "services", "--all-namespaces", "-o", "jsonpath="+public); got != "konnectivity-server 8091" {
		t.Errorf("load balancers: %s", got)
	}
}

// asks asks an API server from the node, whether it is ready.
func (m *machine) asks(url string) error {
	out, err := exec.Command("nsenter", "--net="+m.net, "curl", "--silent", "--show-error", "--insecure", "--fail", "--max-time", "5", url+"/readyz").CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%w: %s", err, out)
	}
	return err
}

// lists has a pod on the node list Services by the Service kubernetes.
func (w *world) lists(name string) {
	w.t.Helper()
	w.nodes.do(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  restartPolicy: OnFailure # kube-proxy may not have been there yet
  containers: [{name: kubectl, image: "registry.k8s.io/kubectl:v1.34.1", args: [get, services, -o, name]}]
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

// killServers kills each server in turn, has the node run a pod at once, and waits until the
// server is back.
func (w *world) killServers() {
	t := w.t
	w.rolledOut()
	for i, pid := range serverPIDs(t) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		w.lists(fmt.Sprint("after-kill-", i))
		fmt.Printf("%5.1f s  until a pod has listed Services, after a server was killed\n", time.Since(began).Seconds())
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
		if _, err := fmt.Sscan(line, &pid); err != nil {
			t.Fatal(err)
		}
		found = append(found, pid)
	}
	return found
}
