package check

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	authentication "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// world is where containers run: with their own arguments and environment,
// volumes as folders of a scratch folder, and ports moved to free ones.
type world struct {
	t     *testing.T
	suite *suite.Suite
	certs certsOutput
	api   string // kubeconfig of a stand-in

	egress string // unix socket of the last sidecar, if it has one
}

func newWorld(t *testing.T) *world {
	s := suite.ForTest(t, programs)
	w := &world{t: t, suite: s, certs: runCerts(t, filepath.Join(s.Dir, "certs"))}
	w.api = w.startAPI(s.Dir)
	return w
}

// startAPI answers token reviews, whatever the token, and refuses all else.
func (w *world) startAPI(dir string) (kubeconfig string) {
	review := authentication.TokenReview{TypeMeta: metav1.TypeMeta{APIVersion: "authentication.k8s.io/v1", Kind: "TokenReview"}}
	review.Status.Authenticated = true
	review.Status.Audiences = []string{"system:konnectivity-server"}
	review.Status.User.Username = "system:serviceaccount:kube-system:konnectivity-agent"
	api := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, req *http.Request) {
		if !strings.HasSuffix(req.URL.Path, "/tokenreviews") {
			http.Error(rw, "no", http.StatusForbidden)
			return
		}
		rw.Header().Set("Content-Type", "application/json")
		rw.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(rw).Encode(review)
	}))
	w.t.Cleanup(api.Close)
	kubeconfig = filepath.Join(dir, "kubeconfig")
	w.write(kubeconfig, []byte(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}], clusters: [{name: c, cluster: {server: "`+api.URL+`"}}]}`))
	return kubeconfig
}

func (w *world) write(path string, data []byte) {
	w.t.Helper()
	testutil.NoError(w.t, os.MkdirAll(filepath.Dir(path), 0o755))
	testutil.NoError(w.t, os.WriteFile(path, data, 0o600))
}

// mount fills a folder as kubelet would, and returns it.
func (w *world) mount(v corev1.Volume) string {
	w.t.Helper()
	dir := filepath.Join(w.suite.Dir, "v"+strconv.Itoa(len(w.suite.Processes()))+v.Name[:min(4, len(v.Name))]+v.Name[len(v.Name)-1:])
	testutil.NoError(w.t, os.MkdirAll(dir, 0o755))
	switch {
	case v.Secret != nil:
		data := w.certs.secrets[v.Secret.SecretName]
		keys := slices.Collect(maps.Keys(data))
		if len(v.Secret.Items) > 0 {
			keys = []string{v.Secret.Items[0].Key}
		}
		for _, key := range keys {
			w.write(filepath.Join(dir, key), data[key])
		}
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				for _, item := range s.Secret.Items {
					if data, has := w.certs.secrets[s.Secret.Name][item.Key]; has { // kubelet leaves out the others
						w.write(filepath.Join(dir, item.Path), data)
					}
				}
			} else if s.ServiceAccountToken != nil {
				w.write(filepath.Join(dir, s.ServiceAccountToken.Path), []byte("token"))
			} else if s.PodCertificate != nil { // as kubelet writes it: the key first
				agent := w.certs.secrets["konnectivity-agent"]
				w.write(filepath.Join(dir, s.PodCertificate.CredentialBundlePath), slices.Concat(agent[corev1.TLSPrivateKeyKey], agent[corev1.TLSCertKey]))
			} else if s.ClusterTrustBundle != nil {
				w.write(filepath.Join(dir, s.ClusterTrustBundle.Path), w.certs.secrets["konnectivity-signer"]["ca.crt"])
			} else {
				w.write(filepath.Join(dir, s.ConfigMap.Items[0].Path), []byte(w.certs.configMaps[s.ConfigMap.Name][s.ConfigMap.Items[0].Key]))
			}
		}
	case v.Name == socketVolume:
	case v.HostPath != nil: // as server/static-pod/README.md makes it
		testutil.NoError(w.t, os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(w.certs.dir)))
		config := testutil.Must(os.ReadFile(w.api))(w.t)
		w.write(filepath.Join(dir, "kubeconfig"), config)
	case v.EmptyDir == nil:
		w.t.Fatalf("what is volume %s?", v.Name)
	}
	return dir
}

// place is a container's command line and environment, with paths as they are here.
func (w *world) place(p pod, c corev1.Container) (args, env []string, paths *strings.Replacer) {
	w.t.Helper()
	var moves []string
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(p.spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		moves = append(moves, m.MountPath+"/", w.mount(p.spec.Volumes[i])+"/")
	}
	paths = strings.NewReplacer(moves...)
	values := map[string]string{}
	for _, e := range c.Env {
		values[e.Name] = w.value(p, e)
		env = append(env, e.Name+"="+paths.Replace(values[e.Name]))
	}
	for _, a := range c.Args {
		// A folder that is named itself gets the slash that the others have.
		args = append(args, strings.TrimSuffix(paths.Replace(expand(w.t, a, values)+"/"), "/"))
	}
	return args, env, paths
}

// value is what kubelet gives a variable.
func (w *world) value(p pod, e corev1.EnvVar) string {
	w.t.Helper()
	switch {
	case e.ValueFrom == nil:
		return e.Value
	case e.ValueFrom.FieldRef != nil:
		return map[string]string{"metadata.name": "pod-0", "metadata.namespace": controlPlane, "spec.nodeName": "node-0"}[e.ValueFrom.FieldRef.FieldPath]
	}
	data, err := p.configMap(e.ValueFrom.ConfigMapKeyRef.Name)
	testutil.Holds(w.t, err == nil && data[e.ValueFrom.ConfigMapKeyRef.Key] != "",
		"%s: variable %s: %v", p.folder, e.Name, err)
	return data[e.ValueFrom.ConfigMapKeyRef.Key]
}

var reference = regexp.MustCompile(`\$\(([A-Za-z_][A-Za-z0-9_]*)\)`)

// expand replaces $(NAME) as kubelet does.
func expand(t *testing.T, text string, values map[string]string) string {
	t.Helper()
	return reference.ReplaceAllStringFunc(text, func(r string) string {
		value := values[r[2:len(r)-1]]
		testutil.Holds(t, value != "", "%s: %s has no value", text, r)
		return value
	})
}

// ports takes n free ones.
func (w *world) ports(n int) (ports []int) {
	w.t.Helper()
	for range n {
		ports = append(ports, testutil.Reserved(w.t))
	}
	return ports
}

// ready waits for a probe of c, moved to another port.
func (w *world) ready(p *suite.Process, probe *corev1.Probe, port int) {
	w.t.Helper()
	testutil.NoError(w.t, suite.WaitReady(p, "http://"+suite.Loopback(port)+probe.HTTPGet.Path))
}

// run starts a container with flags that move its ports.
func (w *world) run(p pod, c corev1.Container, moved func(paths *strings.Replacer) []string) *suite.Process {
	w.t.Helper()
	args, env, paths := w.place(p, c)
	return testutil.Must(w.suite.Run(program(w.t, c), env, slices.Concat(c.Command[1:], args, moved(paths))...))(w.t)
}

// server starts the server of a kustomization, until it lives.
func (w *world) server(folder string) *suite.Server {
	w.t.Helper()
	p, c := only(w.t, folder)
	return w.serve(p, c)
}

// serve is server for a container of one, and further flags.
func (w *world) serve(p pod, c corev1.Container, more ...string) *suite.Server {
	w.t.Helper()
	ports := w.ports(4)
	s := &suite.Server{ClientPort: ports[0], AgentPort: ports[1], HealthPort: ports[2], AdminPort: ports[3]}
	s.Process = w.run(p, c, func(paths *strings.Replacer) []string {
		s.UDS = paths.Replace(argument(c, "uds-name"))
		moved := []string{
			"--agent-port=" + strconv.Itoa(ports[1]), "--agent-bind-address=127.0.0.1",
			"--health-port=" + strconv.Itoa(ports[2]), "--health-bind-address=127.0.0.1",
			"--admin-port=" + strconv.Itoa(ports[3]), "--kubeconfig=" + w.api,
		}
		if argument(c, "server-port") != "0" {
			moved = append(moved, "--server-port="+strconv.Itoa(ports[0]), "--server-bind-address=127.0.0.1")
		}
		return append(moved, more...)
	})
	w.ready(s.Process, c.LivenessProbe, s.HealthPort)
	return s
}

// agent starts the agent of a kustomization, with further flags, until it is ready: connected.
func (w *world) agent(folder string, s *suite.Server, more ...string) *suite.Agent {
	w.t.Helper()
	p, c := only(w.t, folder)
	ports := w.ports(2)
	a := &suite.Agent{HealthPort: ports[0], AdminPort: ports[1]}
	a.Process = w.run(p, c, func(*strings.Replacer) []string {
		moved := []string{
			"--proxy-server-host=127.0.0.1", "--proxy-server-port=" + strconv.Itoa(s.AgentPort),
			"--health-server-host=127.0.0.1", "--health-server-port=" + strconv.Itoa(ports[0]),
			"--admin-server-port=" + strconv.Itoa(ports[1]),
		}
		if slices.Contains(c.Args, "--count-server-leases") {
			moved = append(moved, "--kubeconfig="+w.api)
		}
		return append(moved, more...)
	})
	w.ready(a.Process, c.ReadinessProbe, a.HealthPort)
	return a
}

// stop ends a process as kubelet does, and expects it to agree.
func (w *world) stop(p *suite.Process) {
	w.t.Helper()
	code, err := p.Stop()
	testutil.Holds(w.t, code == 0 && err == nil, "%s ended with %d, %v:\n%s", p.Name, code, err, p.Output())
}

func TestServersAndAgentsRun(t *testing.T) {
	for server, agents := range map[string][]string{
		"server/hosted": {"agent/daemonset", "agent/daemonset-host-network", "agent/daemonset-pod-certificate", "agent/control-plane"},
		staticPod:       {"agent/daemonset-token", "agent/daemonset-token-leases"},
	} {
		w := newWorld(t)
		s := w.server(server)
		p, c := only(t, server)
		for _, folder := range agents {
			w.agent(folder, s)
		}
		if c.ReadinessProbe != nil {
			w.ready(s.Process, c.ReadinessProbe, s.HealthPort)
		}
		testutil.Holds(t, s.UDS == "" || suite.WaitListening(s.Process, "unix", s.UDS) == nil, "%s does not listen on %s", p.folder, s.UDS)
		for _, process := range slices.Backward(w.suite.Processes()) {
			w.stop(process)
		}
	}
}

// By docs/enrolment.md, the control plane's agents get past a server that wants ids to be names
// of certificates: with the common name that all of them show.
func TestControlPlaneAgentsHaveTheirCertificatesName(t *testing.T) {
	text := testutil.Must(os.ReadFile("../../docs/enrolment.md"))(t)
	_, flag, _ := strings.Cut(string(text), "controlPlaneAgent.extraArgs={")
	flag, _, _ = strings.Cut(flag, "}")
	testutil.Requires(t, strings.Contains(string(text), "value: "+flag+"\n"),
		"chart and kustomization are to add different flags: %q", flag)
	w := newWorld(t)
	p, c := only(t, "server/hosted")
	s := w.serve(p, c, "--agent-id-policy=certificate")
	first := w.agent("agent/control-plane", s, flag)
	second := w.agent("agent/control-plane", s, flag)
	for _, process := range []*suite.Process{first.Process, second.Process, s.Process} {
		w.stop(process)
	}
}

// The signer runs, and is not ready while its API refuses.
func TestSignerRuns(t *testing.T) {
	w := newWorld(t)
	p, c := only(t, "signer")
	port := testutil.Reserved(t)
	s := w.run(p, c, func(*strings.Replacer) []string {
		return []string{"--kubeconfig=" + w.api, "--health-bind-address=127.0.0.1", "--health-port=" + strconv.Itoa(port)}
	})
	w.ready(s, c.LivenessProbe, port)
	res := testutil.Must(http.Get("http://" + suite.Loopback(port) + c.ReadinessProbe.HTTPGet.Path))(t)
	_ = res.Body.Close()
	testutil.Equal(t, res.StatusCode, http.StatusServiceUnavailable, "readiness without an API")
	w.stop(s)
}

// Servers link by the name and the certificates that they have there: both are ready with
// one agent.
func TestServersForward(t *testing.T) {
	w := newWorld(t)
	p, c := only(t, hostedPeers)
	ports := w.ports(2)
	i := slices.Index(c.Args, "--peer-servers=konnectivity-server-peers:8097")
	testutil.Requires(t, i >= 0, "its arguments are %q", c.Args)
	c.Args[i] = "--peer-servers=" + suite.Loopback(ports[0]) + "," + suite.Loopback(ports[1]) // what the name resolves to
	var servers []*suite.Server
	for i, port := range ports {
		servers = append(servers, w.serve(p, c, "--peer-port="+strconv.Itoa(port), "--peer-bind-address=127.0.0.1", "--server-id=pod-"+strconv.Itoa(i)))
	}
	w.agent("agent/daemonset", servers[0])
	for _, s := range servers {
		w.ready(s.Process, c.ReadinessProbe, s.HealthPort)
	}
}

// dialed is how many destinations an agent has reached.
func dialed(t *testing.T, a *suite.Agent) (n int) {
	t.Helper()
	res := testutil.Must(http.Get(a.HealthURL("/metrics")))(t)
	defer res.Body.Close()
	text := testutil.Must(io.ReadAll(res.Body))(t)
	count := regexp.MustCompile(`(?m)^konnectivity_network_proxy_agent_dial_duration_seconds_count (\d+)$`).FindSubmatch(text)
	testutil.Requires(t, count != nil, "the agent does not count dials")
	_, _ = fmt.Sscan(string(count[1]), &n)
	return n
}
