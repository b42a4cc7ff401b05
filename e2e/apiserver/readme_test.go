package apiserver

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// reader follows the READMEs of the manifests, in a copy of them, with
// /etc/kubernetes and /root elsewhere.
type reader struct {
	*controlPlane
	dir string // where commands run
}

// fence is a block of commands, or of YAML.
var fence = regexp.MustCompile("(?ms)^```(?:yaml)?\n(.*?)^```$")

// block is the nth of a README.
func (r *reader) block(readme string, n int) string {
	r.t.Helper()
	all := fence.FindAllStringSubmatch(replaced(r.t, readme), -1)
	testutil.Requires(r.t, n < len(all), "%s has %d blocks", readme, len(all))
	return all[n][1]
}

// put makes a file where commands run.
func (r *reader) put(name, text string, mode os.FileMode) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	testutil.NoError(r.t, os.MkdirAll(filepath.Dir(path), 0o755))
	testutil.NoError(r.t, os.WriteFile(path, []byte(text), mode))
}

// follow types commands into a shell, with the reader's own names in place of
// the README's.
func (r *reader) follow(commands string, names ...string) {
	r.t.Helper()
	out, err := r.shell(commands, names...)
	testutil.Requires(r.t, err == nil, "%v:\n%s", err, out)
}

// shell is follow for what may fail.
func (r *reader) shell(commands string, names ...string) (out string, err error) {
	names = append(names, "/etc/kubernetes", r.dir+"/etc", "/root", r.dir+"/root", "CONTROL_PLANE", "127.0.0.1")
	cmd := exec.Command("sh", "-eux", "-c", strings.NewReplacer(names...).Replace(commands))
	cmd.Dir = r.dir
	cmd.Env = []string{"KUBECONFIG=" + r.kubeconfig, "HOME=" + r.dir,
		"PATH=" + strings.Join([]string{r.dir + "/bin", *programsDir, string(binaries), os.Getenv("PATH")}, ":")}
	text, err := cmd.CombinedOutput()
	return string(text), err
}

func newReader(t *testing.T) *reader {
	t.Helper()
	r := &reader{newControlPlane(t), t.TempDir()}
	a := r.addAPI(direct)
	testutil.NoError(t, os.CopyFS(r.dir+"/manifests", os.DirFS(manifests)))
	admin := string(must(os.ReadFile(r.kubeconfig))(t))
	r.put("etc/admin.conf", admin, 0o600)
	r.put("root/nothing", "", 0o600)
	r.put("nodes", admin, 0o600)
	r.put("bin/chown", "#!/bin/sh\n", 0o755) // root's only
	r.byKubeadm(a)
	return r
}

// byKubeadm makes the cluster look as if kubeadm had made it. Kubeadm writes the files
// for /etc/kubernetes/manifests to the folder pods.
func (r *reader) byKubeadm(a *kubeAPI) {
	r.t.Helper()
	r.put("etc/pki/ca.crt", string(r.ca.CertPEM), 0o600)
	r.put("etc/pki/ca.key", string(r.ca.KeyPEM), 0o600)
	r.put("etc/manifests/kube-apiserver.yaml", fmt.Sprintf("    - --advertise-address=192.0.2.1\n    - --secure-port=%d\n", a.port), 0o600)
	r.put("cluster", fmt.Sprintf("apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.37.2\n"+
		"certificatesDir: %s/etc/pki\ncontrolPlaneEndpoint: 127.0.0.1:%d\n", r.dir, a.port), 0o600)
	r.do("create", "configmap", "-n", "kube-system", "kubeadm-config", "--from-file=ClusterConfiguration="+r.dir+"/cluster")
	r.put("bin/kubeadm", fmt.Sprintf("#!/bin/sh -eu\nmkdir -p pods\nexport KUBEADM_INIT_DRYRUN_DIR=$PWD/pods\n"+
		"[ $1 = init ] && set -- \"$@\" --dry-run\nexec %s \"$@\"\n", program("kubeadm")), 0o755)
}

// TestHostedREADME makes certificates and applies the server.
func TestHostedREADME(t *testing.T) {
	r := newReader(t)
	r.follow(r.block("pki/README.md", 0), "ADDRESS_FOR_AGENTS", "203.0.113.7")
	r.follow(r.block("server/hosted/README.md", 0))
	r.put("my/kustomization.yaml", strings.ReplaceAll(r.block("README.md", 0), "path/to/", "../"), 0o600)
	r.follow("kubectl -n my-control-plane apply --validate=strict -k my")
	testutil.Equal(t, r.do("get", "deployment", "-n", "my-control-plane", "konnectivity-server", "-o", "jsonpath={..image}"),
		"registry.example.com/konnectivity:v1.0.0", "the server's image")
}

// TestStaticPodREADME ends with a server and an agent that run with what the
// commands have made.
func TestStaticPodREADME(t *testing.T) {
	const readme = "server/static-pod/README.md"
	r := newReader(t)
	r.follow(r.block(readme, 0))
	r.put("my/kustomization.yaml", strings.ReplaceAll(r.block("agent/README.md", 0), "203.0.113.7", "127.0.0.1"), 0o600)
	r.follow("kubectl apply --validate=strict -k my")
	r.follow(r.block(readme, 1))
	written := string(must(os.ReadFile(r.dir + "/pods/kube-apiserver.yaml"))(t))
	for _, want := range []string{"    image: registry.example.com/konnectivity:v1.0.0\n", "    - --egress-selector-config-file=", "    - --advertise-address=192.0.2.1\n",
		fmt.Sprintf("    - --secure-port=%d\n", r.apis[0].port)} {
		testutil.Contains(t, written, want, "the pod that kubeadm writes")
	}

	in := map[string]string{"$(NODE_NAME)": "master-0", "/etc/kubernetes/": r.dir + "/etc/", "/run/konnectivity/": r.suite.Dir + "/"}
	s := r.newServer(staticPod, in)
	token := r.do("create", "token", "-n", "kube-system", "konnectivity-agent", "--audience=system:konnectivity-server")
	bundle := r.do("get", "configmap", "-n", "kube-system", "konnectivity-ca-bundle", "-o", `jsonpath={.data.ca\.crt}`)
	r.startAgent(&dataPlane{zone: newZone()}, &agent{folder: "agent/daemonset-token", in: map[string]string{
		"$(AGENT_ID)": "agent-0", "$(SERVER_HOST)": "127.0.0.1", "$(SERVER_PORT)": fmt.Sprint(s.AgentPort), "$(IDENTIFIERS)": "default-route=true",
		"/etc/konnectivity/agent/token": r.write("token", []byte(token)), "/etc/konnectivity/agent/ca.crt": r.write("bundle.crt", []byte(bundle))}})
	r.join(s)

	// The second node signs with the same CA.
	r.follow("mkdir ca; cp /etc/kubernetes/konnectivity/pki/ca.crt ca/; cp /root/konnectivity-ca.key ca/ca.key")
	r.follow(r.block(readme, 3), "/etc/kubernetes/konnectivity/pki", r.dir+"/second/pki")
	testutil.Succeeds(t, testutil.Err(os.Stat(r.dir+"/second/pki/cluster.crt")), "the second node's certificate")
}
