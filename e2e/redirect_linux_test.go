package e2e

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// The user that a sidecar runs as, and another.
const (
	sidecarUID = "65532"
	otherUID   = "65534"
)

// redirected is a pod whose only way out leads to a machine that has the
// konnectivity server and the agent, and the hosted cluster's addresses, too: it
// can reach those by itself, and they tell it from the agent.
type redirected struct {
	t        *testing.T
	pod, far netns
	dir      string
	sidecar  *suite.Process
}

const (
	podIP, podIP6 = "10.77.0.2", "fd77::2"
	farIP, farIP6 = "10.77.0.1", "fd77::1"
	hostedIP      = "10.128.0.5"
	hostedIP6     = "fd01::5"
	spareIP       = "10.128.9.5" // of the hosted cluster, but not to be redirected
	frontPort     = "8096"
)

func newRedirected(t *testing.T) *redirected {
	t.Helper()
	r := &redirected{t: t, pod: newNetns(t, "pod"), far: newNetns(t, "far"), dir: openDir(t)}
	mustRun(t, "ip", "-n", string(r.pod), "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", string(r.far))
	for ns, addresses := range map[netns][]string{r.pod: {podIP + "/24", podIP6 + "/64"}, r.far: {farIP + "/24", farIP6 + "/64"}} {
		for _, a := range addresses {
			ns.ip(t, "address add "+a+" dev eth0"+nodad(a))
		}
		ns.ip(t, "link set eth0 up")
	}
	r.pod.ip(t, "route add default via "+farIP)
	r.pod.ip(t, "-6 route add default via "+farIP6)
	for _, a := range []string{hostedIP + "/32", spareIP + "/32", hostedIP6 + "/128"} {
		r.far.ip(t, "address add "+a+" dev lo"+nodad(a))
	}
	r.startTunnel()
	r.sidecar = r.startSidecar("--transparent-port="+frontPort, "--health-address=127.0.0.1:8098")
	r.pod.awaitOK(t, r.sidecar, "http://127.0.0.1:8098/readyz")
	for _, ns := range []netns{r.pod, r.far} {
		for _, port := range []string{"80", "53"} {
			whoami(t, ns.listen(t, "[::]:"+port), "%s")
		}
	}
	return r
}

// nodad has an IPv6 address be of use at once.
func nodad(address string) string {
	if strings.Contains(address, ":") {
		return " nodad"
	}
	return ""
}

// whoami answers every client with a text that has its address.
func whoami(t *testing.T, l net.Listener, format string) {
	serve(t, l, func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		w.Header().Set("Content-Type", "text/plain; version=0.0.4") // as Prometheus wants it
		fmt.Fprintf(w, format, host)
	})
}

// serve serves HTTP until the test ends, each request on a connection of its own.
func serve(t *testing.T, l net.Listener, handler http.HandlerFunc) {
	s := &http.Server{ReadHeaderTimeout: time.Minute, Handler: handler}
	s.SetKeepAlivesEnabled(false)
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close(); <-done })
}

func (r *redirected) bin(program string) string { return binaries.Path(program) }

func (r *redirected) pki(name string) string { return filepath.Join(r.dir, "pki", name) }

// startTunnel starts server and agent, at their usual ports.
func (r *redirected) startTunnel() {
	t := r.t
	mustRun(t, r.bin("konnectivity"), "certs", r.pki(""), "--server-san="+farIP)
	mustRun(t, "chown", "-R", sidecarUID, r.pki(""))
	server := r.far.start(t, r.bin("konnectivity-server"), "--backend-dial-timeout="+suite.DialBound.String(),
		"--server-ca-cert="+r.pki("ca.crt"), "--server-cert="+r.pki("server.crt"), "--server-key="+r.pki("server.key"),
		"--cluster-ca-cert="+r.pki("ca.crt"), "--cluster-cert="+r.pki("cluster.crt"), "--cluster-key="+r.pki("cluster.key"))
	agent := r.far.start(t, r.bin("konnectivity-agent"), "--proxy-server-host=127.0.0.1", "--dial-timeout="+suite.DialBound.String(),
		"--ca-cert="+r.pki("ca.crt"), "--agent-cert="+r.pki("agent.crt"), "--agent-key="+r.pki("agent.key"))
	r.far.awaitOK(t, server, "http://127.0.0.1:8092/healthz")
	r.far.awaitOK(t, agent, "http://127.0.0.1:8093/readyz")
}

// startSidecar starts one with its usual user.
func (r *redirected) startSidecar(more ...string) *suite.Process {
	r.t.Helper()
	line := append(suite.AsUser(sidecarUID), r.bin("konnectivity-socks5-proxy"), "--konnectivity-hostname="+farIP, "--dial-timeout="+suite.DialBound.String(),
		"--ca-cert-path="+r.pki("ca.crt"), "--tls-cert-path="+r.pki("client.crt"), "--tls-key-path="+r.pki("client.key"))
	return r.pod.start(r.t, append(line, more...)...)
}

// redirect runs the command in the pod; by are programs that run it.
func (r *redirected) redirect(by []string, args ...string) (string, error) {
	r.t.Helper()
	return r.pod.run(r.t, append(append(by, r.bin("konnectivity"), "redirect"), args...)...)
}

func (r *redirected) mustRedirect(args ...string) {
	r.t.Helper()
	must(r.redirect(nil, args...))(r.t)
}

// seenAs is the address by which a target knows a program that has no proxy, of
// the given user.
func (r *redirected) seenAs(uid, target string) (string, error) {
	r.t.Helper()
	return r.pod.run(r.t, "setpriv", "--reuid="+uid, "--clear-groups", "curl", "--silent", "--show-error", "--max-time", "60", "http://"+target)
}

func (r *redirected) expect(uid, target, want string) {
	r.t.Helper()
	testutil.Equal(r.t, must(r.seenAs(uid, target))(r.t), want, "user %s is seen at %s as", uid, target)
}

// rules is what nft(8) makes of the pod's rules.
func (r *redirected) rules() string {
	r.t.Helper()
	return must(r.pod.run(r.t, "nft", "list", "ruleset"))(r.t)
}

var curlReset = regexp.MustCompile(`curl: \((7|55|56)\)`)

// A program that knows no proxy reaches the networks through the tunnel once
// they are redirected, and as before once they no longer are.
func TestRedirect(t *testing.T) {
	t.Parallel() // it waits for its programs to start
	r := newRedirected(t)
	resolvConf := filepath.Join(r.dir, "resolv.conf")
	testutil.NoError(t, os.WriteFile(resolvConf, []byte("search svc.cluster.local\nnameserver "+farIP+"\n"), 0o600))
	r.expect(otherUID, hostedIP, podIP)

	args := []string{"10.0.0.0/8", "fd00::/8", "--except=10.128.9.0/24", "--resolv-conf=" + resolvConf}
	r.mustRedirect(args...)
	once := r.rules()
	r.mustRedirect(args...)
	again := r.rules()
	testutil.Holds(t, again == once && strings.Contains(once, "redirect to :"+frontPort), "once:\n%s\ntwice:\n%s", once, again)

	r.expect(otherUID, hostedIP, hostedIP)           // as the agent, which has that address
	r.expect(otherUID, "["+hostedIP6+"]", hostedIP6) // likewise
	r.expect(sidecarUID, hostedIP, podIP)            // and so the sidecar's way to the server is not redirected
	r.expect(otherUID, spareIP, podIP)
	r.expect(otherUID, farIP+":53", podIP) // its DNS
	r.expect(otherUID, podIP, podIP)       // itself
	r.expect(otherUID, "127.0.0.1", "127.0.0.1")
	r.expect(otherUID, "["+podIP6+"]", podIP6)

	for what, target := range map[string]string{"a closed port": hostedIP + ":81", "the front itself": "127.0.0.1:" + frontPort, "the server": farIP + ":8090"} {
		// curl learns of the reset as it connects (7), before it knows that it has (55) or
		// after that (56). An end in order is 52, and silence 28.
		got, err := r.seenAs(otherUID, target)
		testutil.Holds(t, err != nil && curlReset.MatchString(err.Error()), "%s: %q, %v, want a reset", what, got, err)
	}

	r.mustRedirect("--remove")
	r.mustRedirect("--remove")
	testutil.Equal(t, r.rules(), "", "rules that are left")
	r.expect(otherUID, hostedIP, podIP)
}

const prometheusWithoutProxy = `
global: {scrape_interval: 5s, scrape_timeout: 5s}
scrape_configs:
- job_name: hosted
  static_configs: [{targets: ["%s:9100", "[%s]:9100"]}]
`

// A Prometheus that knows no proxy scrapes the networks through the tunnel: its
// targets see the agent, by IPv4 and by IPv6.
func TestRedirectedPrometheus(t *testing.T) {
	t.Parallel() // it waits for scrapes
	r := newRedirected(t)
	whoami(t, r.far.listen(t, "[::]:9100"), "seen{from=\"%s\"} 1\n")
	conf := filepath.Join(r.dir, "prometheus.yml")
	testutil.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, prometheusWithoutProxy, hostedIP, hostedIP6), 0o644))
	r.mustRedirect("10.128.0.0/14", "fd01::/48", "--resolv-conf="+filepath.Join(r.dir, "none"))
	p := r.pod.start(t, append(suite.AsUser(otherUID), programPath(t, "prometheus"), "--config.file="+conf,
		"--storage.tsdb.path="+filepath.Join(r.dir, "data"), "--web.listen-address=127.0.0.1:9090", "--log.level=warn")...)
	r.pod.awaitOK(t, p, "http://127.0.0.1:9090/-/ready")
	for _, from := range []string{hostedIP, hostedIP6} {
		eventually(t, patience, "a target has seen "+from, func() (bool, any) {
			out, err := r.pod.run(t, "curl", "--silent", "--get", "--data-urlencode", "query=seen", "http://127.0.0.1:9090/api/v1/query")
			return strings.Contains(out, fmt.Sprintf(`"from":%q`, from)), fmt.Sprint(out, err)
		})
	}
	if out, err := r.pod.run(t, "curl", "--silent", "--get", "--data-urlencode", "query=seen", "http://127.0.0.1:9090/api/v1/query"); err != nil ||
		strings.Contains(out, podIP) || strings.Contains(out, podIP6) {
		t.Errorf("a target has seen the pod: %s, %v", out, err)
	}
}

// If the sidecar's own connections come back to it, it ends them instead of
// going in circles, and says what to do.
func TestRedirectedSidecarDoesNotLoop(t *testing.T) {
	t.Parallel() // it waits for its programs to start
	r := newRedirected(t)
	r.mustRedirect("10.0.0.0/8", "--uid=1", "--transparent-port=8097")
	looped := r.startSidecar("--serving-port=8099", "--transparent-port=8097", "--link=off", "--health-address=127.0.0.1:8100")
	r.pod.awaitOK(t, looped, "http://127.0.0.1:8100/healthz")
	testutil.Fails(t, testutil.Err(r.seenAs(otherUID, hostedIP)), "a way to the hosted cluster")
	logged(t, looped, patience, "--uid="+sidecarUID)
	for _, line := range []string{"konnectivity_transparent_open_connections 0", `konnectivity_transparent_requests_total{outcome="denied"} `} {
		eventually(t, patience, fmt.Sprintf("metrics have %q", line), func() (bool, any) {
			page, err := r.pod.run(t, "curl", "--silent", "http://127.0.0.1:8100/metrics")
			return err == nil && strings.Contains(page, line), err
		})
	}
	r.mustRedirect("10.0.0.0/8", "--transparent-port=8097")
	r.pod.awaitOK(t, looped, "http://127.0.0.1:8100/readyz")
	r.expect(otherUID, hostedIP, hostedIP)
}

// Without its right, redirect changes nothing and says which it needs.
func TestRedirectNeedsItsRight(t *testing.T) {
	t.Parallel()
	r := &redirected{t: t, pod: newNetns(t, "bare")}
	for what, by := range map[string][]string{
		"root without capabilities": {"setpriv", "--bounding-set=-net_admin"},
		"a user":                    {"setpriv", "--reuid=" + otherUID, "--clear-groups"},
	} {
		for _, args := range [][]string{{"10.0.0.0/8"}, {"--remove"}} {
			if out, err := r.redirect(by, args...); err == nil || !strings.Contains(out, "CAP_NET_ADMIN is missing") || strings.Count(out, "\n") != 1 {
				t.Errorf("%s, %q: %v, %q", what, args, err, out)
			}
		}
	}
	testutil.Equal(t, r.rules(), "", "rules")
}
