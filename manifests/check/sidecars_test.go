package check

import (
	"crypto/tls"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// The files that sidecars look for unless told otherwise.
const (
	defaultCA   = "/etc/konnectivity/proxy-ca/ca.crt"
	defaultCert = "/etc/konnectivity/proxy-client/tls.crt"
	defaultKey  = "/etc/konnectivity/proxy-client/tls.key"
)

// sidecar starts the sidecar in p, until it lives, and returns where each port
// of its arguments is now.
func (w *world) sidecar(p pod, s *suite.Server) (*suite.Process, map[string]int) {
	w.t.Helper()
	c := p.ours()[0]
	moved := map[string]int{}
	health := w.ports(1)[0]
	process := w.run(p, c, func(paths *strings.Replacer) []string {
		w.egress = paths.Replace(argument(c, "serving-uds"))
		flags := []string{
			"--konnectivity-hostname=127.0.0.1", "--konnectivity-port=" + strconv.Itoa(s.ClientPort), "--health-address=" + suite.Loopback(health),
		}
		for name, file := range map[string]string{"ca-cert-path": defaultCA, "tls-cert-path": defaultCert, "tls-key-path": defaultKey} {
			if argument(c, name) == "" {
				flags = append(flags, "--"+name+"="+paths.Replace(file))
			}
		}
		for _, name := range []string{"serving-port", "socks5-serving-port", "http-serving-port", "transparent-port"} {
			if port := argument(c, name); port != "" && port != "0" {
				if moved[port] == 0 {
					moved[port] = w.ports(1)[0]
				}
				flags = append(flags, "--"+name+"="+strconv.Itoa(moved[port]))
			}
		}
		return flags
	})
	w.ready(process, c.LivenessProbe, health)
	return process, moved
}

// dialsItself begins the names of variables that an application hands on and
// does not heed: it dials SOCKS5 by itself where sidecars listen by default.
const dialsItself = "MGMT_"

// proxies are the proxies that an application uses, by the variable that tells
// it of them.
func proxies(t *testing.T, p pod) map[string]string {
	t.Helper()
	found := map[string]string{}
	builtIn := false
	for _, c := range p.spec.Containers {
		for _, e := range c.Env {
			switch {
			case strings.HasPrefix(e.Name, dialsItself):
				builtIn = true
			case strings.HasSuffix(e.Name, "_PROXY") && e.Name != "NO_PROXY":
				found[e.Name] = e.Value
			}
		}
	}
	if builtIn {
		testutil.Equal(t, len(found), 0,
			"%s dials by itself, and would send through the tunnel all requests of %v", p.name, found)
		found["built in"] = "socks5://127.0.0.1:8090"
	}
	for _, m := range each[corev1.ConfigMap](p.objects) {
		var config struct {
			ScrapeConfigs []struct {
				ProxyURL string `json:"proxy_url"`
			} `json:"scrape_configs"`
		}
		testutil.NoError(t, yaml.Unmarshal([]byte(m.Data["prometheus.yml"]), &config))
		found["proxy_url"] = config.ScrapeConfigs[0].ProxyURL
	}
	return found
}

// targets are a plain and a TLS server in the data plane.
type targets struct{ plain, secure *httptest.Server }

func startTargets(t *testing.T) targets {
	hello := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") })
	all := targets{httptest.NewServer(hello), httptest.NewTLSServer(hello)}
	t.Cleanup(all.plain.Close)
	t.Cleanup(all.secure.Close)
	return all
}

// ask fetches from a target by a proxy, plain only where variable is for that.
func (all targets) ask(t *testing.T, variable string, proxy *url.URL) {
	t.Helper()
	target := all.secure.URL
	if variable == "HTTP_PROXY" {
		target = all.plain.URL
	}
	fetch(t, &http.Transport{Proxy: http.ProxyURL(proxy)}, target)
}

// fetch fetches from a target by a transport that it ends.
func fetch(t *testing.T, transport *http.Transport, target string) {
	t.Helper()
	transport.TLSClientConfig, transport.DisableKeepAlives = &tls.Config{InsecureSkipVerify: true}, true
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Get(target)
	if err != nil {
		t.Error(err)
		return
	}
	defer res.Body.Close()
	if text, err := io.ReadAll(res.Body); string(text) != "hello" || err != nil {
		t.Errorf("%s: %q, %v", res.Status, text, err)
	}
}

// TestSidecarExamples goes by each example as its application would: with the
// example's own arguments and variables, to a server that only the agent dials.
func TestSidecarExamples(t *testing.T) {
	examples, err := filepath.Glob(filepath.Join(manifests, "sidecars/examples/*"))
	testutil.Requires(t, err == nil && len(examples) >= 10, "%v, %v", examples, err)
	w := newWorld(t)
	s := w.server("server/hosted")
	agent := w.agent("agent/daemonset", s)
	all := startTargets(t)
	for _, example := range examples {
		folder := "sidecars/examples/" + filepath.Base(example)
		if folder == socketClient || folder == proxyless || slices.Contains(besideAPI, folder) {
			continue // TestSocketClient, TestRedirectingExample, TestEgressBySidecar
		}
		t.Run(filepath.Base(example), func(t *testing.T) {
			for _, p := range pods(folder, build(t, folder)) {
				w.t = t
				w.example(p, s, agent, all)
			}
		})
	}
}

func (w *world) example(p pod, s *suite.Server, agent *suite.Agent, all targets) {
	t := w.t
	process, moved := w.sidecar(p, s)
	told := proxies(t, p)
	testutil.Requires(t, len(told) != 0, "%s is told of no proxy", p.name)
	for variable, text := range told {
		proxy, err := url.Parse(text)
		testutil.Requires(t, err == nil && proxy.Hostname() == "127.0.0.1" && moved[proxy.Port()] != 0,
			"%s=%s: the sidecar is not there (%v, %v)", variable, text, slices.Sorted(maps.Keys(moved)), err)
		proxy.Host = suite.Loopback(moved[proxy.Port()])
		before := dialed(t, agent)
		all.ask(t, variable, proxy)
		testutil.AtLeast(t, dialed(t, agent), before+1, "%s=%s: dials by the tunnel", variable, text)
	}
	w.stop(process)
}

// proxyless is the example of an application without a proxy setting.
const proxyless = "sidecars/examples/prometheus-transparent"

// redirector is the container of p that redirects.
func redirector(t *testing.T, p pod) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(p.spec.InitContainers, func(c corev1.Container) bool { return c.Name == "konnectivity-redirect" })
	testutil.Requires(t, i >= 0, "%s redirects nothing", p.folder)
	return p.spec.InitContainers[i]
}

// TestRedirectingExample checks that the rules redirect all processes to the sidecar,
// except the sidecar.
func TestRedirectingExample(t *testing.T) {
	p := pods(proxyless, build(t, proxyless))[0]
	redirect, sidecar := redirector(t, p), p.ours()[0]
	if port := argument(sidecar, "transparent-port"); port == "" || port != argument(redirect, "transparent-port") {
		t.Errorf("connections go to port %s, the sidecar has %s", argument(redirect, "transparent-port"), port)
	}
	testutil.Equal(t, argument(redirect, "uid"), strconv.FormatInt(*sidecar.SecurityContext.RunAsUser, 10),
		"the user that is left alone, which is the sidecar")
	for _, c := range p.spec.Containers {
		if s := c.SecurityContext; s == nil || s.RunAsUser == nil || *s.RunAsUser == *sidecar.SecurityContext.RunAsUser {
			t.Errorf("%s may run as the sidecar's user, so nothing of it is redirected", c.Name)
		}
	}
	testutil.Holds(t, sidecar.StartupProbe != nil, "the program may start before the sidecar")
	s := redirect.SecurityContext
	testutil.Holds(t, *s.RunAsUser == 0 && slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}),
		"it may not set rules")
	s = s.DeepCopy() // but for these two, it is as restricted as others
	s.RunAsNonRoot, s.Capabilities.Add = sidecar.SecurityContext.RunAsNonRoot, nil
	testutil.Equal(t, len(unsafe(nil, s)), 0, "faults, of %v", unsafe(nil, s))

	w := newWorld(t)
	server := w.server("server/hosted")
	process, moved := w.sidecar(p, server)
	front := suite.Loopback(moved[argument(sidecar, "transparent-port")])
	c, err := net.Dial("tcp", front)
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	testutil.ErrorIs(t, err, syscall.ECONNRESET, "%s, of who was not redirected", front)
	w.stop(process)
	w.stop(server.Process)
}

// TestRedirectingArguments sets the rules of the example, in a network namespace
// that ends with the command.
func TestRedirectingArguments(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	c := redirector(t, pods(proxyless, build(t, proxyless))[0])
	args := append([]string{"--net", programs.Path(program(t, c))}, c.Args...)
	out, err := exec.Command("unshare", args...).CombinedOutput()
	testutil.Holds(t, err == nil && strings.Contains(string(out), "now go to port "+argument(c, "transparent-port")), "%v: %s", err, out)
}
