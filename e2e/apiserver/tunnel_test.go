package apiserver

import (
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// grace is what servers and agents leave to open connections here, in place of
// the manifests' 30 s.
const grace = "5s"

// workload is a Pod, or an object with the template of one.
type workload struct {
	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		corev1.PodSpec `json:",inline"`
		Template       corev1.PodTemplateSpec `json:"template"`
	} `json:"spec"`
}

// live stands in a folder's place for an object that the API has, as kubectl get
// wants it named.
const live = "live: "

// images are how kustomizations and READMEs call ours.
var images = []string{"konnectivity:latest", "registry.example.com/konnectivity:v1.0.0"}

// build is what a kustomization makes, an object each.
func (p *controlPlane) build(folder string) []string {
	p.t.Helper()
	if object, ok := strings.CutPrefix(folder, live); ok {
		return []string{p.do(append([]string{"get", "-o", "yaml"}, strings.Fields(object)...)...)}
	}
	out := p.do("kustomize", "--load-restrictor=LoadRestrictionsNone", filepath.Join(manifests, folder))
	return strings.Split(out, "\n---\n")
}

// ours is the container of a kustomization that runs a program of the suite.
func (p *controlPlane) ours(folder string) corev1.Container {
	p.t.Helper()
	for _, text := range p.build(folder) {
		var w workload
		testutil.NoError(p.t, yaml.Unmarshal([]byte(text), &w))
		all := append(w.Spec.Containers, w.Spec.Template.Spec.Containers...)
		if i := slices.IndexFunc(all, func(c corev1.Container) bool { return slices.Contains(images, c.Image) }); i >= 0 {
			return all[i]
		}
	}
	p.t.Fatalf("%s runs nothing of ours", folder)
	return corev1.Container{}
}

// run starts the program of a kustomization with its very arguments and
// environment. in has the values of variables and the places of files; more moves
// ports.
func (p *controlPlane) run(folder string, in map[string]string, more ...string) *suite.Process {
	p.t.Helper()
	c := p.ours(folder)
	var moves []string
	for from, to := range in {
		moves = append(moves, from, to)
	}
	moved := strings.NewReplacer(moves...)
	var args []string
	for _, a := range c.Args {
		if a = moved.Replace(a); strings.Contains(a, "$(") || strings.Contains(a, "=/etc/") {
			p.t.Fatalf("%s: %s means nothing here", folder, a)
		}
		args = append(args, a)
	}
	var env []string
	for _, e := range c.Env {
		if e.ValueFrom == nil {
			env = append(env, e.Name+"="+moved.Replace(e.Value))
		}
	}
	return must(p.suite.Run(filepath.Base(c.Command[0]), env, append(args, more...)...))(p.t)
}

// server is one of a kustomization, to be started again with the same ports.
type server struct {
	*suite.Server
	folder   string
	in       map[string]string
	more     []string
	endpoint atomic.Bool // its Service leads to it
}

// newServer starts one on free ports.
func (p *controlPlane) newServer(folder string, in map[string]string, more ...string) *server {
	p.t.Helper()
	s := &server{Server: &suite.Server{}, folder: folder, in: in, more: more}
	for _, port := range []*int{&s.AgentPort, &s.HealthPort, &s.AdminPort} {
		*port = testutil.Reserved(p.t)
	}
	p.startServer(s)
	return s
}

// startServer starts s (again), until it lives. It is ready later.
func (p *controlPlane) startServer(s *server) {
	p.t.Helper()
	moved := []string{"--graceful-shutdown-timeout=" + grace,
		"--agent-port=" + strconv.Itoa(s.AgentPort), "--agent-bind-address=127.0.0.1",
		"--health-port=" + strconv.Itoa(s.HealthPort), "--health-bind-address=127.0.0.1", "--admin-port=" + strconv.Itoa(s.AdminPort)}
	s.Process = p.run(s.folder, s.in, append(moved, s.more...)...)
	testutil.NoError(p.t, suite.WaitReady(s.Process, s.HealthURL("/healthz")))
}

// endpointLag is how long it takes until nodes have heard that a pod is, or is
// no longer, an endpoint of its Service.
const endpointLag = time.Second

// join waits until s is ready and its Service leads to it.
func (p *controlPlane) join(s *server) {
	p.t.Helper()
	wait(p.t, "the server is ready", func() bool { return answers(http.DefaultClient, s.HealthURL("/readyz")) })
	time.Sleep(endpointLag)
	s.endpoint.Store(true)
}

// terminate ends s as kubelet does, after the sleep its container has, while
// the Service hears of it.
func (p *controlPlane) terminate(s *server) {
	p.t.Helper()
	heard := time.AfterFunc(endpointLag, func() { s.endpoint.Store(false) })
	defer heard.Stop()
	if l := p.ours(s.folder).Lifecycle; l != nil {
		time.Sleep(time.Duration(l.PreStop.Sleep.Seconds) * time.Second)
	}
	stop(p.t, s.Process)
}

// agent is one of a kustomization.
type agent struct {
	*suite.Agent
	folder string
	in     map[string]string
	more   []string
}

// startAgent starts an agent that the zone lets in, until it is connected.
func (p *controlPlane) startAgent(d *dataPlane, a *agent) {
	p.t.Helper()
	p.launchAgent(a)
	d.zone.admit(a.PID())
	testutil.NoError(p.t, suite.WaitReady(a.Process, a.HealthURL("/readyz")))
}

// launchAgent starts an agent that may be refused.
func (p *controlPlane) launchAgent(a *agent) {
	p.t.Helper()
	a.Agent = &suite.Agent{HealthPort: testutil.Reserved(p.t), AdminPort: testutil.Reserved(p.t)}
	// A node to each: of two on one, the first would hand over to the second and end.
	in := maps.Clone(a.in)
	in["/run/konnectivity-agents/"], in["$(NAMESPACE)"] = p.suite.Dir+"/", "handover-"+in["$(AGENT_ID)"]
	a.Process = p.run(a.folder, in, append([]string{"--graceful-shutdown-timeout=" + grace,
		"--health-server-host=127.0.0.1", "--health-server-port=" + strconv.Itoa(a.HealthPort), "--admin-server-port=" + strconv.Itoa(a.AdminPort)}, a.more...)...)
}

// stop ends a program as kubelet does.
func stop(t *testing.T, p *suite.Process) {
	t.Helper()
	code, err := p.Stop()
	testutil.Holds(t, code == 0 && err == nil, "%s ended with %d, %v", p.Name, code, err)
}

// replaced is a file of the manifests with other names and places.
func replaced(t *testing.T, file string, in ...string) string {
	t.Helper()
	data := testutil.Must(os.ReadFile(filepath.Join(manifests, file)))(t)
	return strings.NewReplacer(in...).Replace(string(data))
}
