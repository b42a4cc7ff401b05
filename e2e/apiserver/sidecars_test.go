package apiserver

import (
	"crypto/tls"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// hostedUser may do what the sidecars' README asks for, and no more.
const hostedUser = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: service-network, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: service-network}
rules: [{apiGroups: [""], resources: [services], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: service-network}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: service-network}
subjects: [{kind: ServiceAccount, name: service-network, namespace: kube-system}]
`

// sidecars runs each example with its own arguments and environment. An
// application asks by the proxies that the example tells it of for a Service,
// whose address the sidecar has from the API, and which agents alone reach.
func (w *world) sidecars(t *testing.T) {
	w.t = t
	w.apply(hostedUser)
	token := strings.TrimSpace(w.do("create", "token", "-n", "kube-system", "service-network"))
	kubeconfig := w.userConfig("service-network", w.front.port, "token: "+token)
	examples, err := filepath.Glob(filepath.Join(manifests, "sidecars/examples/*"))
	testutil.Requires(t, err == nil && len(examples) >= 10, "%v, %v", examples, err)
	for _, example := range examples {
		switch filepath.Base(example) {
		case "csi-controller-socket":
			continue // has no sidecar
		case "kube-apiserver":
			continue // TestSidecar
		case "prometheus-transparent":
			continue // has no proxy setting; manifests/check runs it
		}
		t.Run(filepath.Base(example), func(t *testing.T) {
			w.t = t
			w.example("sidecars/examples/"+filepath.Base(example), kubeconfig)
		})
	}
}

// builtIn is the proxy of an application whose manifest has no proxy setting: it
// speaks SOCKS5 itself.
var builtIn = []string{"", "socks5://127.0.0.1:8090", "8090"}

// proxySetting is where a manifest names a proxy for an application.
var proxySetting = regexp.MustCompile(`(?m)(?:value|proxy_url): ((?:http|socks5)://127\.0\.0\.1:(\d+))$`)

func (w *world) example(folder, kubeconfig string) {
	c := w.ours(folder)
	health := suite.Loopback(testutil.Reserved(w.t))
	more := []string{"--konnectivity-hostname=127.0.0.1", "--konnectivity-port=" + strconv.Itoa(w.service.port), "--health-address=" + health,
		"--ca-cert-path=" + w.suite.PKI("ca.crt"), "--tls-cert-path=" + w.suite.PKI("client.crt"), "--tls-key-path=" + w.suite.PKI("client.key")}
	moved := map[string]string{} // ports
	for _, a := range c.Args {
		if name, port, _ := strings.Cut(a, "="); strings.HasSuffix(name, "serving-port") {
			moved[port] = strconv.Itoa(testutil.Reserved(w.t))
			more = append(more, name+"="+moved[port])
		}
	}
	p := w.run(folder, map[string]string{"/etc/konnectivity/hosted/kubeconfig": kubeconfig}, more...)
	testutil.NoError(w.t, suite.WaitReady(p, "http://"+health+"/readyz"))
	proxies := proxySetting.FindAllStringSubmatch(strings.Join(w.build(folder), "\n"), -1)
	if len(proxies) == 0 && filepath.Base(folder) == "cluster-network-operator" {
		proxies = append(proxies, builtIn)
	}
	testutil.AtLeast(w.t, len(proxies), 1, "proxies that the application is told of")
	host := "judge.apps.svc"
	if slices.Contains(c.Args, "--disable-resolver") {
		host = judgeIP // agents know no Services
	}
	for _, m := range proxies {
		w.askBy(strings.Replace(m[1], m[2], moved[m[2]], 1), host)
	}
	stop(w.t, p)
}

// askBy asks the webhook for something that it does not understand.
func (w *world) askBy(proxy, host string) {
	w.t.Helper()
	transport := &http.Transport{Proxy: http.ProxyURL(must(url.Parse(proxy))(w.t)), DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: w.ca.Pool(), ServerName: "judge.apps.svc"}}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	before := w.zone.taken.Load()
	res, err := client.Get("https://" + host + ":" + w.dataPlane.judge)
	if err != nil {
		w.t.Errorf("by %s: %v", proxy, err)
		return
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != "no review\n" {
		w.t.Errorf("by %s: %s, %q, %v", proxy, res.Status, body, err)
	}
	testutil.AtLeast(w.t, w.zone.taken.Load(), before+1, "connections by %s through the tunnel", proxy)
}

// kubectlBySidecars has kubectl reach its kube-apiserver by each sidecar, and stream by
// SPDY as by WebSocket.
func (w *world) kubectlBySidecars(t *testing.T) {
	service := &suite.Server{ClientPort: w.service.port}
	for scheme, start := range map[string]func(*suite.Server, ...string) (*suite.Sidecar, error){
		"http": w.suite.StartHTTPS, "socks5": w.suite.StartSOCKS5,
	} {
		w.t, w.env = t, nil
		s := must(start(service))(t)
		w.do("config", "set-cluster", "c", "--proxy-url="+scheme+"://"+s.Address())
		for protocol, websockets := range map[string]string{"SPDY": "false", "WebSocket": "true"} {
			t.Run(protocol+" by "+scheme, func(t *testing.T) {
				w.t, w.env = t, []string{"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=" + websockets, "KUBECTL_PORT_FORWARD_WEBSOCKETS=" + websockets}
				w.logs()
				w.exec()
				w.forward()
			})
		}
		w.t = t
		stop(t, s.Process)
		testutil.Fails(t, testutil.Err(w.try("", "version")), "kubectl without the sidecar")
	}
}

// besideAPI is a kube-apiserver whose sidecar serves it a unix socket.
const besideAPI = "sidecars/examples/kube-apiserver"

// TestSidecar has a kube-apiserver dial by a sidecar beside it, and the sidecar by any
// server of the Service.
func TestSidecar(t *testing.T) {
	w := newHostedBy(t, func(w *world) string {
		w.startSidecar()
		return replaced(t, besideAPI+"/egress-selector-configuration.yaml", "/run/konnectivity/", w.file(""))
	})
	t.Run("before", w.everything)
	t.Run("servers come and go", w.outlive)
	t.Run("after", w.everything)
	stop(t, w.sidecar)
}

// startSidecar runs it before there is a server, as pods start in any order.
func (w *world) startSidecar() {
	health := suite.Loopback(testutil.Reserved(w.t))
	w.sidecar = w.run(besideAPI, map[string]string{"/run/konnectivity/": w.file("")},
		"--konnectivity-hostname=127.0.0.1", "--konnectivity-port="+strconv.Itoa(w.service.port), "--health-address="+health,
		"--ca-cert-path="+w.suite.PKI("ca.crt"), "--tls-cert-path="+w.suite.PKI("client.crt"), "--tls-key-path="+w.suite.PKI("client.key"))
	testutil.NoError(w.t, suite.WaitReady(w.sidecar, "http://"+health+"/healthz"))
}
