package cluster

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// machine is a node: containerd and kubelet, on a network.
type machine struct {
	*cluster
	name, dir string
	net       string // the network namespace, or "" for the test's own
	kubelet   []string
}

// containerdConfig has Debian's plugins. Lowering a process's oom_score_adj is not
// allowed here.
const containerdConfig = `version = 2
root = "%[1]s/root"
state = "%[1]s/state"
[grpc]
address = "%[1]s/c.sock"
[plugins."io.containerd.grpc.v1.cri"]
sandbox_image = "docker.io/library/pause:example"
restrict_oom_score_adj = true
[plugins."io.containerd.grpc.v1.cri".cni]
bin_dir = "/usr/lib/cni"
conf_dir = "%[1]s/cni"
`

const cniConfig = `{"cniVersion": "0.4.0", "name": "pods", "plugins": [
  {"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": true, "hairpinMode": true,
   "ipam": {"type": "host-local", "dataDir": %[1]q, "ranges": [[{"subnet": "10.%[2]s.0.0/24"}], [{"subnet": "fd00:%[2]s::/64"}]],
     "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
  {"type": "portmap", "capabilities": {"portMappings": true}}]}
`

// kubeletConfig has a folder of its own for logs, and no control groups: each of
// the two kubelets would tidy the other's away.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: %[1]s/ca.crt}}
authorization: {mode: AlwaysAllow}
tlsCertFile: %[1]s/%[2]s-kubelet.crt
tlsPrivateKeyFile: %[1]s/%[2]s-kubelet.key
containerRuntimeEndpoint: unix://%[3]s/c.sock
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failSwapOn: false
failCgroupV1: false
clusterDNS: [%[4]s]
clusterDomain: cluster.local
resolvConf: %[3]s/resolv.conf
podLogsDir: %[3]s/logs
evictionHard: {memory.available: 10Mi, nodefs.available: 1%%, imagefs.available: 1%%}
imageGCHighThresholdPercent: 100
`

// newNode makes a machine that can be a node of the cluster, whose pods are in 10.PODS.0.0/24
// and fd00:PODS::/64. Its containerd runs.
func (c *cluster) newNode(name, ip, ip6, pods string) *machine {
	c.t.Helper()
	m := &machine{cluster: c, name: name, dir: filepath.Join(c.world.dir, name)}
	if ip == nodeIP {
		m.net = nodesNet
	}
	// Layers are unpacked on a disk: an overlay cannot lie on all that /run may be.
	root := must(os.MkdirTemp("", "konnectivity-cluster-"))(c.t)
	c.t.Cleanup(func() { _ = os.RemoveAll(root) })
	write(c.t, m.dir+"/config.toml", strings.Replace(fmt.Sprintf(containerdConfig, m.dir), m.dir+"/root", root, 1))
	write(c.t, m.dir+"/cni/pods.conflist", fmt.Sprintf(cniConfig, m.dir+"/ipam", pods))
	write(c.t, m.dir+"/resolv.conf", "nameserver "+controlIP+"\n")
	c.issue(name+"-kubelet", pki.Leaf{CommonName: "system:node:" + name, IPs: []net.IP{net.ParseIP(ip), net.ParseIP(ip6)}, Server: true})
	write(c.t, m.dir+"/kubelet.yaml", fmt.Sprintf(kubeletConfig, c.dir, name, m.dir, ip))
	m.kubelet = []string{"--config=" + m.dir + "/kubelet.yaml", "--hostname-override=" + name, "--node-ip=" + ip + "," + ip6, "--root-dir=" + m.dir + "/kubelet"}
	m.start("containerd", "containerd", "--config="+m.dir+"/config.toml")
	wait(c.t, "containerd runs", func() error { _, err := m.ctr("version"); return err })
	return m
}

// run runs kubelet, and waits until the node is ready.
func (m *machine) run() {
	m.t.Helper()
	m.runAt(m.url)
}

// runAt is run for a node that finds the API server elsewhere.
func (m *machine) runAt(url string, flags ...string) {
	m.t.Helper()
	kubeconfig := m.userConfigAt(url, m.name, pki.Leaf{CommonName: "system:node:" + m.name, Organization: "system:nodes"})
	m.start("kubelet", program("kubelet"), append(append(m.kubelet, "--kubeconfig="+kubeconfig), flags...)...)
	wait(m.t, m.name+" is ready", func() error {
		out, err := m.try("", "get", "node", m.name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status}`)
		if err == nil && out != "True" {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
}

// startProxy makes Services work on the node, which finds the API server at url.
func (m *machine) startProxy(url string) {
	kubeconfig := m.userConfigAt(url, "proxy", pki.Leaf{CommonName: "system:kube-proxy"})
	m.start("kube-proxy", program("kube-proxy"), "--kubeconfig="+kubeconfig, "--proxy-mode=iptables", "--conntrack-max-per-core=0", "--hostname-override="+m.name)
}

// start runs a program in the machine's network.
func (m *machine) start(name, path string, args ...string) {
	m.t.Helper()
	if m.net == "" {
		m.cluster.start(name, path, args...)
		return
	}
	m.cluster.start(name, "nsenter", append([]string{"--net=" + m.net, path}, args...)...)
}

func (m *machine) ctr(args ...string) (string, error) {
	out, err := exec.Command("ctr", append([]string{"--address=" + m.dir + "/c.sock", "--namespace=k8s.io"}, args...)...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), err
}

// load brings the images there that pods are made of: ours as the release has it.
func (m *machine) load() {
	m.t.Helper()
	for image, files := range map[string]map[string]string{
		"docker.io/library/pause:example":          {"bin/sleep": "/bin/busybox"},
		"docker.io/library/hello:example":          {"bin/sh": "/bin/busybox", "bin/sleep": "/bin/busybox", "bin/httpd": "/bin/busybox"},
		"docker.io/library/kube-apiserver:example": {"usr/bin/kube-apiserver": program("kube-apiserver")},
		"registry.k8s.io/kubectl:v1.34.1":          {"bin/kubectl": program("kubectl")},
	} {
		if m.name != "control" && (strings.Contains(image, "/kube-apiserver")) {
			continue
		}
		must(m.ctr("images", "import", m.pack(image, files)))(m.t)
	}
	must(m.ctr("images", "import", filepath.Join(*dist, "konnectivity_1.0.0_oci.tar")))(m.t)
	must(m.ctr("images", "tag", "docker.io/library/konnectivity:v1.0.0", "registry.example.com/konnectivity:v1.0.0"))(m.t)
}

// entrypoints of images that have one.
var entrypoints = map[string][]string{
	"pause": {"/bin/sleep", "infinity"}, "kubectl": {"/bin/kubectl"}, "agnhost": {"/agnhost"}, "sample-apiserver": {"/sample-apiserver"},
}

// arguments of images, unless a pod gives its own.
var arguments = map[string][]string{"agnhost": {"pause"}}

// pack makes an archive of an image of files of this machine.
func (m *machine) pack(image string, files map[string]string) string {
	m.t.Helper()
	layer := filepath.Join(m.t.TempDir(), "layer.tar")
	f := must(os.Create(layer))(m.t)
	hash := sha256.New()
	tw := tar.NewWriter(io.MultiWriter(f, hash))
	for name, path := range files {
		m.add(tw, name, path, 0o755)
	}
	testutil.NoError(m.t, tw.Close())
	_ = f.Close()
	short, _, _ := strings.Cut(filepath.Base(image), ":")
	config := must(json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Env": []string{"PATH=/usr/bin:/bin"}, "Entrypoint": entrypoints[short], "Cmd": arguments[short]},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", hash.Sum(nil))}},
	}))(m.t)
	manifest := must(json.Marshal([]map[string]any{{"Config": "config.json", "RepoTags": []string{image}, "Layers": []string{"layer.tar"}}}))(m.t)
	dir := filepath.Dir(layer)
	archive := filepath.Join(dir, "image.tar")
	f = must(os.Create(archive))(m.t)
	defer f.Close()
	tw = tar.NewWriter(f)
	m.add(tw, "manifest.json", write(m.t, dir+"/manifest.json", string(manifest)), 0o644)
	m.add(tw, "config.json", write(m.t, dir+"/config.json", string(config)), 0o644)
	m.add(tw, "layer.tar", layer, 0o644)
	testutil.NoError(m.t, tw.Close())
	return archive
}

// add puts a file, or a symbolic link as one, into an archive.
func (m *machine) add(tw *tar.Writer, name, path string, mode int64) {
	m.t.Helper()
	if to, err := os.Readlink(path); err == nil {
		testutil.NoError(m.t, tw.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: to}))
		return
	}
	f := must(os.Open(path))(m.t)
	defer f.Close()
	testutil.NoError(m.t, tw.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: must(f.Stat())(m.t).Size()}))
	must(io.Copy(tw, f))(m.t)
}
