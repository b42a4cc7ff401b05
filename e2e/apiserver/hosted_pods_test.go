package apiserver

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// hostedPods is a control plane as Kamaji, Kubermatic and HyperShift host it: each pod is a
// kube-apiserver with a server beside it, and one Service leads agents to the pods that are
// ready.
type hostedPods struct {
	*world
	pods  []*hostedPod
	ports []int // of the servers for one another; nil: they do not forward
}

// hostedPod is one that is new whenever it is started.
type hostedPod struct {
	api   *kubeAPI
	srv   *suite.Server
	args  []string    // of srv
	ready atomic.Bool // the Service leads to it
}

// newHostedPods has agents come by token, which the kube-apiserver in the pod reviews, and
// counts servers by a flag, as Kamaji does.
func newHostedPods(t *testing.T, forward bool) *hostedPods {
	p := newControlPlane(t)
	h := &hostedPods{world: &world{controlPlane: p, front: newBalancer(t, false), service: newBalancer(t, true), pods: true}}
	for range 4 {
		if forward {
			h.ports = append(h.ports, testutil.Reserved(t))
		}
	}
	first := p.addAPI(replaced(t, "server/static-pod/egress-selector-configuration.yaml", "/run/konnectivity/", p.file("none"))) // which makes the objects
	p.do("apply", "-k", manifests+"/server/static-pod")
	p.do("apply", "-k", manifests+"/agent/daemonset-token-leases")
	stopAPI(first.Process)
	for range 3 {
		h.start(h.newPod(), 0)
	}
	for _, pod := range h.pods {
		h.admit(pod)
	}
	h.kubeconfig = h.userConfig("front", h.front.port, "client-certificate: "+p.file("admin.crt")+", client-key: "+p.file("admin.key"))
	h.dataPlane = newDataPlane(t, p)
	token := p.write("token", []byte(p.do("create", "token", "-n", "kube-system", "konnectivity-agent", "--audience=system:konnectivity-server")))
	for i := range 2 {
		a := must(p.suite.Run("konnectivity-agent", nil, "--agent-id=agent-"+strconv.Itoa(i), "--proxy-server-port="+strconv.Itoa(h.service.port),
			"--ca-cert="+p.suite.PKI("ca.crt"), "--service-account-token-path="+token,
			"--health-server-port="+strconv.Itoa(testutil.Reserved(t)), "--admin-server-port=0"))(t)
		h.zone.admit(a.PID())
	}
	for _, pod := range h.pods {
		h.linked(pod)
	}
	return h
}

func (h *hostedPods) newPod() *hostedPod {
	n := strconv.Itoa(len(h.pods))
	pod := &hostedPod{srv: &suite.Server{AgentPort: testutil.Reserved(h.t), HealthPort: testutil.Reserved(h.t)}}
	dir := h.file("pod" + n)
	testutil.NoError(h.t, os.Mkdir(dir, 0o700))
	pod.api = h.newAPI(replaced(h.t, "server/static-pod/egress-selector-configuration.yaml", "/run/konnectivity", dir))
	pod.args = []string{"--server-id=pod-" + n, "--server-count=3", "--server-port=0", "--mode=grpc", "--uds-name=" + dir + "/server.socket",
		"--agent-namespace=kube-system", "--agent-service-account=konnectivity-agent", "--authentication-audience=system:konnectivity-server",
		"--kubeconfig=" + h.clientOf("system:konnectivity-server", pod.api.port),
		"--cluster-cert=" + h.suite.PKI("cluster.crt"), "--cluster-key=" + h.suite.PKI("cluster.key"),
		"--agent-port=" + strconv.Itoa(pod.srv.AgentPort), "--health-port=" + strconv.Itoa(pod.srv.HealthPort), "--admin-port=0"}
	for i, port := range h.ports {
		pod.args = append(pod.args, "--peer-servers="+suite.Loopback(port))
		if i == len(h.pods) {
			pod.args = append(pod.args, "--peer-bind-address=127.0.0.1", "--peer-port="+strconv.Itoa(port), "--peer-ca-cert="+h.suite.PKI("ca.crt"))
		}
	}
	h.pods = append(h.pods, pod)
	h.front.add(pod.api.port, pod.ready.Load)
	h.service.add(pod.srv.AgentPort, pod.ready.Load)
	return pod
}

// imagePull is how much later kube-apiserver begins in a new pod, if its image has yet to be
// pulled.
const imagePull = 9 * time.Second

// start has both programs begin.
func (h *hostedPods) start(pod *hostedPod, pull time.Duration) {
	h.t.Helper()
	pod.srv.Process = must(h.suite.Run("konnectivity-server", nil, pod.args...))(h.t)
	time.Sleep(pull)
	pod.api.Process = h.controlPlane.start("kube-apiserver", pod.api.args...)
}

// admit has the Service lead to a pod once it is ready, as nodes hear of it.
func (h *hostedPods) admit(pod *hostedPod) {
	h.t.Helper()
	wait(h.t, "kube-apiserver is ready", func() bool { return h.controlPlane.ready(pod.api) })
	time.Sleep(endpointLag)
	pod.ready.Store(true)
}

// linked waits until agents have found a pod.
func (h *hostedPods) linked(pod *hostedPod) {
	h.t.Helper()
	wait(h.t, "the server has agents", func() bool { return answers(http.DefaultClient, pod.srv.HealthURL("/readyz")) })
}

// end deletes a pod.
func (h *hostedPods) end(pod *hostedPod) {
	time.AfterFunc(endpointLag, func() { pod.ready.Store(false) })
	var both sync.WaitGroup
	both.Go(func() { stopAPI(pod.api.Process) })
	stop(h.t, pod.srv.Process)
	both.Wait()
}

// writes follows an APIService by a pod's kube-apiserver, and counts how often it was written
// until stop.
func (h *hostedPods) writes(pod *hostedPod) (stop func() int) {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	client := h.client()
	client.Timeout = 0
	req := must(http.NewRequestWithContext(ctx, http.MethodGet, "https://"+suite.Loopback(pod.api.port)+
		"/apis/apiregistration.k8s.io/v1/apiservices?watch=1&fieldSelector=metadata.name%3Dv1.example.test", nil))(h.t)
	res := must(client.Do(req))(h.t)
	seen := make(chan int)
	go func() {
		defer res.Body.Close()
		n := -1 // the first one is what there was
		for d := json.NewDecoder(res.Body); d.Decode(&struct{}{}) == nil; {
			n++
		}
		seen <- n
	}()
	return func() int { cancel(); return <-seen }
}

// A kube-apiserver asks for aggregated APIs as it starts, when its pod is not ready, so that no
// agent can have come to the server beside it. What others have is served by them, where
// servers forward. Where they do not, it hears nothing for 5 s, calls the API unavailable, and
// others correct it, time after time. Were it refused at once, that would be dozens of times a
// second, in which half of the requests fail.
func TestPodsBehindOneService(t *testing.T) {
	testutil.Each(t, map[string]bool{"alone": false, "forwarding": true}, func(t *testing.T, forward bool) {
		h := newHostedPods(t, forward)
		old, stays := h.pods[0], h.pods[1]
		for _, r := range requests() {
			wait(t, "requests are answered", func() bool { return h.ask(h.client(), r) == nil })
		}
		writes, l := h.writes(stays), h.press()
		time.Sleep(breath)
		told := time.Now()
		h.end(old)
		pod := h.newPod()
		h.start(pod, imagePull)
		began := time.Now()
		h.admit(pod)
		h.linked(pod)
		took := time.Since(began)
		time.Sleep(breath)
		l.end()
		n := writes()
		t.Logf("%v until agents had come; the API was written %d times; of requests %v, %d failed once, %d twice", took, n, l.sent, len(l.cut), len(l.lost))
		if !forward { // the pod may be ready long before agents find it
			testutil.AtMost(t, n, 2*(1+int(took/(5*time.Second))), "writes of the API")
			return
		}
		testutil.Equal(t, n, 0, "writes of the API")
		for _, f := range append(l.cut, l.lost...) {
			testutil.Holds(t, near(f.at, told), // it met the kube-apiserver that ended
				"%s failed after %v: %v", f.kind, f.at.Sub(told), f.err)
		}
	})
}
