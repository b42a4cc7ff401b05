package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// answerTime bounds an answer of any kind while something is missing: a dial
// has 10 s.
const answerTime = 15 * time.Second

// lateSidecar runs a sidecar whose certificates, server, kubeconfig, API and
// DNS are yet to come, with both fronts.
type lateSidecar struct {
	*observed
	suite *suite.Suite
	dir   string // certificates and kubeconfig appear here
	socks string
	http  string
}

func newLateSidecar(t *testing.T, s *suite.Suite, serverPort int, program string) *lateSidecar {
	t.Helper()
	l := &lateSidecar{suite: s, dir: openDir(t)}
	l.observed = &observed{&suite.Sidecar{Port: testutil.Reserved(t)}, testutil.ReservedAddress(t)}
	second := testutil.Reserved(t)
	flag, fronts := "http", [2]string{l.Address(), suite.Loopback(second)}
	if program == "konnectivity-https-proxy" {
		flag, fronts = "socks5", [2]string{suite.Loopback(second), l.Address()}
	}
	l.socks, l.http = fronts[0], fronts[1]
	l.Process = must(s.Run(program, []string{"KUBECONFIG=" + filepath.Join(l.dir, "kubeconfig")}, "run",
		"--konnectivity-hostname=127.0.0.1", fmt.Sprintf("--konnectivity-port=%d", serverPort),
		fmt.Sprintf("--serving-port=%d", l.Port), fmt.Sprintf("--%s-serving-port=%d", flag, second), "--health-address="+l.health,
		"--ca-cert-path="+filepath.Join(l.dir, "ca.crt"), "--tls-cert-path="+filepath.Join(l.dir, "tls.crt"),
		"--tls-key-path="+filepath.Join(l.dir, "tls.key"), "--resolve-from-guest-cluster-dns"))(t)
	for _, address := range fronts {
		testutil.NoError(t, suite.WaitListening(l.Process, "tcp", address))
	}
	return l
}

// certificates puts a folder's client certificate where the sidecar looks, the
// way that volumes are updated: each file at once.
func (l *lateSidecar) certificates(t *testing.T, from string) {
	t.Helper()
	for to, name := range map[string]string{"ca.crt": "ca.crt", "tls.crt": "client.crt", "tls.key": "client.key"} {
		data := must(os.ReadFile(filepath.Join(from, name)))(t)
		tmp := filepath.Join(l.dir, to+".new")
		testutil.NoError(t, os.WriteFile(tmp, data, 0o600))
		testutil.NoError(t, os.Rename(tmp, filepath.Join(l.dir, to)))
	}
}

// get asks by one front, and demands an answer within the bound.
func (l *lateSidecar) get(t *testing.T, front, host, port string) error {
	t.Helper()
	proxy := "http://" + l.http
	if front == "socks5" {
		proxy = "socks5://" + l.socks
	}
	took := stopwatch(l.suite)
	got, err := getBy(proxy, "http://"+host+":"+port+"/late")
	testutil.AtMost(t, took(), answerTime, "%s by %s: the time of the answer", host, front)
	if err == nil && got != "hello /late" {
		err = fmt.Errorf("got %q", got)
	}
	return err
}

// comes waits until a host answers by both fronts.
func (l *lateSidecar) comes(t *testing.T, bound time.Duration, host, port string) {
	t.Helper()
	for _, front := range []string{"http", "socks5"} {
		eventually(t, bound, host+" by "+front, func() (bool, any) {
			err := l.get(t, front, host, port)
			return err == nil, err
		})
	}
}

// fails wants a clear refusal by both fronts.
func (l *lateSidecar) fails(t *testing.T, host, port string, want ...string) {
	t.Helper()
	err := l.get(t, "http", host, port)
	testutil.Holds(t, err != nil && slices.ContainsFunc(want, func(w string) bool { return strings.Contains(err.Error(), w) }),
		"%s by http: %v; want one of %q", host, err, want)
	testutil.ErrorSays(t, l.get(t, "socks5", host, port), "socks connect", "%s by socks5", host)
}

// Both start with nothing in place, say what is missing, and work step by step
// as each thing appears.
func TestSidecarStartsBeforeAllElse(t *testing.T) {
	t.Parallel()
	testutil.EachOf(t, []string{"konnectivity-socks5-proxy", "konnectivity-https-proxy"}, func(t *testing.T, program string) {
		t.Parallel()
		s := newSuite(t)
		server := &suite.Server{ClientPort: testutil.Reserved(t), AgentPort: testutil.Reserved(t),
			HealthPort: testutil.Reserved(t), AdminPort: testutil.Reserved(t), UDS: filepath.Join(s.Dir, "late")}
		l := newLateSidecar(t, s, server.ClientPort, program)
		ip, apiIP := loopbackIP(), loopbackIP()
		web := newHostedWeb(t, ip)

		l.fails(t, ip, web.plain, "503")
		l.fails(t, "app.guest.test", web.plain, "502", "503", "504")
		testutil.Succeeds(t, testutil.Err(curl(t, "http://"+l.health+"/healthz")), "health")
		testutil.Fails(t, testutil.Err(curl(t, "http://"+l.health+"/readyz")), "readiness without anything")

		l.certificates(t, s.PKI(""))
		l.fails(t, ip, web.plain, "503")
		testutil.NoError(t, s.RunServer(server))
		// Files are looked at every 10 s, and what failed for want of them is
		// tried again at once.
		eventually(t, 15*time.Second+patience, "readiness", func() (bool, any) {
			_, err := curl(t, "http://"+l.health+"/readyz")
			return err == nil, err
		})
		l.fails(t, ip, web.plain, "503") // no agent
		must(s.StartAgent(server))(t)
		l.comes(t, patience, ip, web.plain)

		l.fails(t, "web.apps.svc", web.plain, "502", "503", "504")
		api := startAPI(t, apiIP+":0")
		api.set("apps", "web", ip)
		api.set("openshift-dns", "dns-default", ip)
		api.writeKubeconfig(t, filepath.Join(l.dir, "kubeconfig"))
		l.comes(t, patience, "web.apps.svc", web.plain)

		l.fails(t, "app.guest.test", web.plain, "502", "503", "504")
		(&hostedCluster{ip: ip}).startDNS(t)
		l.comes(t, patience, "app.guest.test", web.plain)

		// An operator can read what it said meanwhile, beside dials that failed: 20 a minute of
		// each outcome at most.
		lines := strings.Count(l.Output(), "\n") - strings.Count(l.Output(), `"outcome":`)
		t.Logf("%d lines of log", lines)
		testutil.AtMost(t, lines, 30, "lines of log\n%s", l.Output())
	})
}

// The server's CA, the client's certificate, the API's address, CA and token
// are all replaced under a running sidecar.
func TestSidecarFollowsRotation(t *testing.T) {
	t.Parallel()
	d := newDeployment(t)
	l := newLateSidecar(t, d.Suite, d.server.ClientPort, "konnectivity-https-proxy")
	l.certificates(t, d.PKI(""))
	d.hosted.api.set("apps", "old", d.hosted.ip)
	d.hosted.api.writeKubeconfig(t, filepath.Join(l.dir, "kubeconfig"))
	l.comes(t, patience, "old.apps.svc", d.web.plain)

	next := startAPI(t, loopbackIP()+":0")
	next.token = "another-token"
	next.set("apps", "new", d.hosted.ip)
	next.writeKubeconfig(t, filepath.Join(l.dir, "kubeconfig"))
	d.hosted.api.CloseClientConnections()
	d.hosted.api.Close()
	l.comes(t, patience, "new.apps.svc", d.web.plain)

	pki2 := filepath.Join(openDir(t), "pki")
	must(command(t, nil, d.Bin.Path("konnectivity"), "certs", pki2))(t)
	stopInOrder(t, d.server.Process)
	file := func(name string) string { return filepath.Join(pki2, name) }
	testutil.NoError(t, d.RunServer(d.server, "--server-ca-cert="+file("ca.crt"), "--server-cert="+file("server.crt"), "--server-key="+file("server.key")))
	testutil.Fails(t, l.get(t, "http", d.hosted.ip, d.web.plain), "the new server, by the old CA")
	l.certificates(t, pki2)
	l.comes(t, 2*patience, d.hosted.ip, d.web.plain)
}

// A server that is told to go does not wait for connections that a sidecar
// only keeps for later requests.
func TestSidecarLetsServersGo(t *testing.T) {
	d := newDeployment(t)
	srv := must(d.StartServer("--graceful-shutdown-timeout=1h"))(t)
	must(d.StartAgent(srv))(t)
	s := d.sidecarOf(t, srv.ClientPort, "konnectivity-https-proxy", d.env)
	wantHello(t, "kept", string(must(curl(t, "--proxy", "http://"+s.Address(), "http://app.guest.test:"+d.web.plain+"/kept"))(t)))
	stopInOrder(t, srv.Process)
}
