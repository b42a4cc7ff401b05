package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// hostedCluster is what a sidecar sees of a hosted cluster: an API that knows
// Services and a DNS. The agent reaches both as it reaches all of loopback.
type hostedCluster struct {
	dir        string
	kubeconfig string
	ip         string // of the DNS and of everything whose name only it knows
	api        *kubeAPI
}

// guestDNS are the arguments that every dnsmasq of these tests has (debug mode
// would serve one connection at a time): nothing of
// the machine's own configuration, and no such name for what is not listed.
var guestDNS = []string{"--keep-in-foreground", "--log-facility=-", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--bind-interfaces", "--port=53",
	"--pid-file=", "--user=", "--group=", "--local=/guest.test/", "--local=/cluster.local/", "--local=/invalid/"}

// newHostedCluster starts both. records are dnsmasq's, in addition to
// app.guest.test, which has the cluster's address.
func newHostedCluster(t *testing.T, records ...string) *hostedCluster {
	t.Helper()
	h := &hostedCluster{dir: openDir(t), ip: loopbackIP()}
	h.api = startAPI(t, loopbackIP()+":0")
	h.api.set("openshift-dns", "dns-default", h.ip)
	h.kubeconfig = filepath.Join(h.dir, "kubeconfig")
	h.api.writeKubeconfig(t, h.kubeconfig)
	h.startDNS(t, records...)
	return h
}

// startDNS runs the cluster's dnsmasq, which the test may stop.
func (h *hostedCluster) startDNS(t *testing.T, records ...string) *suite.Process {
	t.Helper()
	args := append([]string{"--listen-address=" + h.ip, "--host-record=app.guest.test," + h.ip}, guestDNS...)
	p := external(t, "dnsmasq", append(args, records...)...)
	testutil.NoError(t, suite.WaitListening(p, "tcp", h.ip+":53"))
	return p
}

// loopbackIPs is how many were given out.
var loopbackIPs atomic.Int32

// loopbackIP is an address of this machine that no other test uses, so that fixed
// ports (DNS has 53) do not collide.
func loopbackIP() string {
	n := loopbackIPs.Add(1)
	return fmt.Sprintf("127.%d.%d.%d", 1+os.Getpid()%250, n/250, 2+n%250)
}

// openDir is a scratch folder that programs which give up root can use, too.
func openDir(t *testing.T) string {
	t.Helper()
	dir := must(os.MkdirTemp("", "k"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	testutil.NoError(t, os.Chmod(dir, 0o777))
	return dir
}

// external runs a program of the system until the test ends.
func external(t *testing.T, program string, args ...string) *suite.Process {
	t.Helper()
	p := must(suite.Start(program, programPath(t, program), args, nil))(t)
	t.Cleanup(func() {
		_ = p.Signal(syscall.SIGTERM) // only so do its children end with it
		_, _ = p.Wait(5 * time.Second)
		p.Kill()
		if t.Failed() {
			t.Logf("--- %s\n%s", program, p.Output())
		}
	})
	return p
}

// programPath finds programs in sbin as well, where users' PATH may not lead.
func programPath(t testing.TB, program string) string {
	t.Helper()
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return path
		}
	}
	t.Fatalf("%s is not installed; `.ci/install` installs it", program)
	return ""
}

// command runs a client program to its end with a bare environment and env,
// and returns what it printed.
func command(t testing.TB, env []string, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, programPath(t, program), args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir()}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %q: %w: %.2000s", program, args, err, out)
	}
	return string(out), err
}

// tunnelOf is a suite with a server and an agent.
type tunnelOf struct {
	*suite.Suite
	server *suite.Server
	agent  *suite.Agent
}

func newTunnel(t *testing.T, agentArgs ...string) *tunnelOf {
	t.Helper()
	s := newSuite(t)
	server := must(s.StartServer("--mode=http-connect", "--proxy-strategies=destHost,defaultRoute",
		"--graceful-shutdown-timeout=1s"))(t)
	agent := must(s.StartAgent(server, append([]string{"--agent-identifiers=default-route=true"}, agentArgs...)...))(t)
	return &tunnelOf{s, server, agent}
}

// observed is a sidecar with health and metrics on.
type observed struct {
	*suite.Sidecar
	health string // host:port
}

// sidecar runs a sidecar against the tunnel with env added, and waits until it
// listens.
func (w *tunnelOf) sidecar(t *testing.T, program string, env []string, more ...string) *observed {
	t.Helper()
	return w.sidecarOf(t, w.server.ClientPort, program, env, more...)
}

func (w *tunnelOf) sidecarOf(t *testing.T, serverPort int, program string, env []string, more ...string) *observed {
	t.Helper()
	o := &observed{&suite.Sidecar{Port: testutil.Reserved(t)}, testutil.ReservedAddress(t)}
	args := append(w.sidecarArgs(serverPort), fmt.Sprintf("--serving-port=%d", o.Port), "--health-address="+o.health)
	o.Process = must(w.Run(program, env, append(args, more...)...))(t)
	testutil.NoError(t, suite.WaitListening(o.Process, "tcp", o.Address()))
	return o
}

// sidecarArgs are the flags that say where the server is and who we are.
func (w *tunnelOf) sidecarArgs(serverPort int) []string {
	return []string{"run", "--konnectivity-hostname=127.0.0.1", fmt.Sprintf("--konnectivity-port=%d", serverPort),
		"--ca-cert-path=" + w.PKI("ca.crt"), "--tls-cert-path=" + w.PKI("client.crt"), "--tls-key-path=" + w.PKI("client.key")}
}

// dials is how often the sidecar has dialed by route, well or not.
func (o *observed) dials(t testing.TB, route string) (n float64) {
	t.Helper()
	for _, line := range strings.Split(string(must(curl(t, "http://"+o.health+"/metrics"))(t)), "\n") {
		if strings.HasPrefix(line, "konnectivity_sidecar_dials_total{") && strings.Contains(line, `route="`+route+`"`) {
			var value float64
			_, _ = fmt.Sscan(line[strings.LastIndexByte(line, ' '):], &value)
			n += value
		}
	}
	return n
}

// recorded is the Service openshift-dns/dns-default as an OpenShift 4 API
// returns it; name, namespace and clusterIPs are put in.
const recorded = `{"kind":"Service","apiVersion":"v1","metadata":{"name":"dns-default","namespace":"openshift-dns",
"uid":"0f6e55a9-43b2-4b0e-8ed0-1cfd18d19d1b","resourceVersion":"5821","creationTimestamp":"2026-08-04T09:17:33Z",
"labels":{"dns.operator.openshift.io/owning-dns":"default"},
"annotations":{"service.beta.openshift.io/serving-cert-secret-name":"dns-default-metrics-tls"},
"ownerReferences":[{"apiVersion":"operator.openshift.io/v1","kind":"DNS","name":"default","uid":"3f1f1f0c-51d5-44a5-8f1e-84a2a0f3c6f3","controller":true}],
"managedFields":[{"manager":"dns-operator","operation":"Update","apiVersion":"v1","time":"2026-08-04T09:17:33Z","fieldsType":"FieldsV1","fieldsV1":{"f:spec":{"f:ports":{"k:{\"port\":53,\"protocol\":\"UDP\"}":{".":{}}}}}}]},
"spec":{"ports":[{"name":"dns","protocol":"UDP","port":53,"targetPort":"dns"},{"name":"dns-tcp","protocol":"TCP","port":53,"targetPort":"dns-tcp"},
{"name":"metrics","protocol":"TCP","port":9154,"targetPort":"metrics"}],"selector":{"dns.operator.openshift.io/daemonset-dns":"default"},
"clusterIP":"172.30.0.10","clusterIPs":["172.30.0.10"],"type":"ClusterIP","sessionAffinity":"None","ipFamilies":["IPv4"],
"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster"},"status":{"loadBalancer":{}}}`

// set stores a Service.
func (k *kubeAPI) set(namespace, name, clusterIP string) {
	var s map[string]any
	if err := json.Unmarshal([]byte(recorded), &s); err != nil {
		panic(err)
	}
	spec := s["spec"].(map[string]any)
	spec["clusterIP"], spec["clusterIPs"] = clusterIP, []any{clusterIP}
	k.put(place{"services", namespace, name}, s)
}

// clientBy is an HTTP client by proxy, one connection a request.
func clientBy(proxy string) *http.Client {
	u, err := url.Parse(proxy)
	if err != nil {
		panic(err)
	}
	return &http.Client{Transport: &http.Transport{Proxy: http.ProxyURL(u), DisableKeepAlives: true}, Timeout: patience}
}

func serverTLS(pair pki.Pair) *tls.Config {
	return &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, NextProtos: []string{"h2", "http/1.1"}}
}
