package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/dns/dnsmessage"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestFaultDestinationDenied(t *testing.T) {
	t.Parallel()
	for who, flags := range map[string][2][]string{
		"agent":  {nil, {"--deny-destination=127.0.0.0/8"}},
		"server": {{"--deny-destination=127.0.0.0/8"}, nil},
	} {
		t.Run(who, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t, flags[0], flags[1])
			f.checkTells(t, f.reachable, nil, "policy", "--deny-destination")
			f.statusTells(t, slack, f.serverAt(), "failed dials in the last minute: 1 denied", f.reachable)
		})
	}
}

// answer is a DNS answer with a code and nothing else.
func answer(code dnsmessage.RCode) func(dnsmessage.Question, uint16) []byte {
	return func(q dnsmessage.Question, id uint16) []byte {
		b := dnsmessage.NewBuilder(nil, dnsmessage.Header{ID: id, Response: true, RCode: code})
		_ = b.StartQuestions()
		_ = b.Question(q)
		msg, err := b.Finish()
		if err != nil {
			panic(err)
		}
		return msg
	}
}

func TestFaultGuestDNSDead(t *testing.T) {
	f := newFaulty(t, nil, nil)
	for name, c := range map[string]struct {
		dns   func(t *testing.T) (ip string)
		words []string
	}{
		"silent":   {func(t *testing.T) string { return fakeDNS(t, nil) }, []string{"✘ DNS of the hosted cluster", "it does not answer", "--guest-dns-service"}},
		"refusing": {func(t *testing.T) string { return fakeDNS(t, answer(dnsmessage.RCodeRefused)) }, []string{"✘ DNS of the hosted cluster", "query refused", "--guest-dns-service"}},
		"failing":  {func(t *testing.T) string { return fakeDNS(t, answer(dnsmessage.RCodeServerFailure)) }, []string{"✘ DNS of the hosted cluster", "server failure", "--guest-dns-service"}},
		"unknown":  {func(t *testing.T) string { return fakeDNS(t, answer(dnsmessage.RCodeNameError)) }, []string{"is not known there", "✘ name: nobody knows db.guest.test"}},
		"away":     {func(*testing.T) string { return loopbackIP() }, []string{"✘ DNS of the hosted cluster", "connection refused", "--guest-dns-service"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := &hostedCluster{dir: openDir(t), ip: c.dns(t)}
			h.kubeconfig = filepath.Join(h.dir, "kubeconfig")
			h.api = startAPI(t, loopbackIP()+":0")
			h.api.set("openshift-dns", "dns-default", h.ip)
			h.api.writeKubeconfig(t, h.kubeconfig)
			f.checkTells(t, "db.guest.test:5432", []string{"--kubeconfig=" + h.kubeconfig, "--resolve-from-guest-cluster-dns"},
				c.words...)
		})
	}
}

// Where the agent looks names up, it is the agent's own DNS that may be dead.
// It reads /etc/resolv.conf, so it gets one of its own.
func TestFaultAgentsDNSDead(t *testing.T) {
	t.Parallel()
	if err := exec.Command("unshare", "--mount", "true").Run(); err != nil {
		t.Skip("a mount namespace is not to be had: ", err)
	}
	f := newFaulty(t, nil, nil)
	f.agent.Kill()
	udp := must(net.ListenPacket("udp", loopbackIP()+":53"))(t) // takes questions and answers none
	t.Cleanup(func() { udp.Close() })
	resolv := filepath.Join(f.Dir, "resolv.conf")
	if err := os.WriteFile(resolv, []byte("nameserver "+udp.LocalAddr().(*net.UDPAddr).IP.String()+"\noptions timeout:1 attempts:1\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	a := &suite.Agent{HealthPort: testutil.Reserved(t), AdminPort: testutil.Reserved(t)}
	a.Process = must(suite.Start("unshare", "unshare", []string{"--mount", "sh", "-c", `mount --bind "$0" /etc/resolv.conf && exec "$@"`, resolv,
		f.Bin.Path("konnectivity-agent"), "--agent-id=agent-2", "--proxy-server-host=127.0.0.1", fmt.Sprintf("--proxy-server-port=%d", f.server.AgentPort),
		fmt.Sprintf("--health-server-port=%d", a.HealthPort), fmt.Sprintf("--admin-server-port=%d", a.AdminPort),
		"--ca-cert=" + f.PKI("ca.crt"), "--agent-cert=" + f.PKI("agent.crt"), "--agent-key=" + f.PKI("agent.key")}, nil))(t)
	t.Cleanup(a.Kill)
	if err := suite.WaitReady(a.Process, a.HealthURL("/readyz")); err != nil {
		t.Fatal(err)
	}
	f.checkTells(t, "db.guest.test:5432", nil, "db.guest.test is left to the agent to look up", "name lookup failed: the agent's DNS does not answer")
	f.statusTells(t, slack, agentAt(a), "failed dials in the last minute: 1 resolve", "db.guest.test:5432", "the agent's DNS does not answer")
}

func TestFaultCustomerProxyWantsAuth(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, nil)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Proxy-Authenticate", "Basic")
		w.WriteHeader(http.StatusProxyAuthRequired)
	}))
	defer proxy.Close()
	at := proxy.Listener.Addr().String()
	// Nobody goes by a proxy to loopback, so this is a network for examples.
	f.checkTells(t, "192.0.2.7:443", []string{"--https-proxy=http://user:hunter2@" + at}, "customer proxy wants authentication", "user and password in --https-proxy")
	if _, screen := f.check(t, "192.0.2.7:443", "--https-proxy=http://user:hunter2@"+at); strings.Contains(screen, "hunter2") {
		t.Error("a password is shown")
	}
	admin := suite.Loopback(testutil.Reserved(t))
	https := must(f.StartHTTPS(f.server, "--https-proxy=http://"+at, "--admin-address="+admin))(t)
	if c, err := viaConnect("tcp", https.Address(), nil).Dial(within(t, time.Minute), tunnel.NewFlow("tcp", "192.0.2.7:443")); err == nil {
		c.Close()
		t.Error("it connected")
	}
	f.statusTells(t, slack, admin, "failed dials in the last minute: 1 proxy auth", "customer proxy wants authentication")
}

// Many readers that do not read fill the server's memory for bytes in flight.
func TestFaultStalledReaders(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, []string{"--memory-budget-mib=8"}, nil)
	w := &whole{Suite: f.Suite, server: f.server}
	sends := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(c, newPayload(1, stalledSize)) })
	// As many as are taken: what the first receive may fill the memory before the
	// last is dialed.
	way := viaConnect("tcp", suite.Loopback(f.server.ClientPort), w.clientTLS(t))
	for i := range 128 {
		c, err := way.Dial(within(t, patience), tunnel.NewFlow("tcp", sends))
		if refusal := (*statusError)(nil); errors.As(err, &refusal) && strings.Contains(refusal.body, "no memory for more") {
			t.Logf("%d are taken", i)
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	f.statusTells(t, patience, f.serverAt(), "connections wait for a side that does not read", "the memory for bytes in flight by link is full")
	f.checkTells(t, f.reachable, nil, "connections wait for a side that does not read", "the memory for bytes in flight by link is full", "--memory-budget-mib")
}

// takenBy is a port where something else answers.
func takenBy(t *testing.T, what string) (at, port string) {
	t.Helper()
	switch what {
	case "web server":
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Server", "shop/1.0")
			w.WriteHeader(http.StatusNotFound)
		}))
		t.Cleanup(s.Close)
		at = s.Listener.Addr().String()
	default:
		at = listen(t, func(c *net.TCPConn) { _, _ = io.WriteString(c, "SSH-2.0-x\r\n"); _, _ = io.Copy(io.Discard, c) })
	}
	_, port, _ = net.SplitHostPort(at)
	return at, port
}

// A program whose port is taken does not start and says which; check and status
// say who answers there instead.
func TestFaultPortTaken(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, nil)
	for what, who := range map[string]string{"web server": "an HTTP server (shop/1.0)", "other program": "an SSH server"} {
		t.Run(what, func(t *testing.T) {
			at, port := takenBy(t, what)
			f.cannotStart(t, port)
			f.checkTells(t, f.reachable, []string{"--konnectivity-port=" + port}, who+" answers there instead", "--konnectivity-port")
			f.checkTells(t, f.reachable, []string{"--serving-port=" + port}, who, at, "Another program has taken the port")
			if status, screen := operator(t, f.Suite, "status", at); status != 1 || !tells(screen, at, "another program") && !tells(screen, who) {
				t.Errorf("status: %d\n%s", status, screen)
			}
		})
	}
}

// cannotStart starts each program with one of its ports taken.
func (f *faulty) cannotStart(t *testing.T, port string) {
	t.Helper()
	free := func() string { return fmt.Sprint(testutil.Reserved(t)) }
	sidecar := []string{"--ca-cert-path=" + f.PKI("ca.crt"), "--tls-cert-path=" + f.PKI("client.crt"), "--tls-key-path=" + f.PKI("client.key")}
	for _, c := range []struct {
		program, flag string
		args          []string
	}{
		{"konnectivity-server", "--server-port", []string{"--agent-port=" + free(), "--health-port=" + free(), "--admin-port=" + free(),
			"--server-ca-cert=" + f.PKI("ca.crt"), "--server-cert=" + f.PKI("server.crt"), "--server-key=" + f.PKI("server.key"),
			"--cluster-ca-cert=" + f.PKI("ca.crt"), "--cluster-cert=" + f.PKI("cluster.crt"), "--cluster-key=" + f.PKI("cluster.key")}},
		{"konnectivity-agent", "--admin-server-port", []string{"--health-server-port=" + free(),
			"--ca-cert=" + f.PKI("ca.crt"), "--agent-cert=" + f.PKI("agent.crt"), "--agent-key=" + f.PKI("agent.key")}},
		{"konnectivity-socks5-proxy", "--serving-port", sidecar},
		{"konnectivity-https-proxy", "--serving-port", sidecar},
	} {
		p := must(f.Run(c.program, nil, append(c.args, c.flag+"="+port)...))(t)
		code, err := p.Wait(patience)
		out := p.Output()
		if err != nil || code != 1 || strings.Count(out, "\n") != 1 || !tells(out, c.flag, ":"+port, "address already in use") {
			t.Errorf("%s: status %d, %v: %s", c.program, code, err, out)
		}
	}
}
