package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/sirupsen/logrus"
	logrustest "github.com/sirupsen/logrus/hooks/test"
	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"konnectivity/cmd/internal/program"
	"konnectivity/internal/cli"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// parse returns the flags of a command line.
func parse(t *testing.T, args ...string) (*flags, error) {
	t.Helper()
	f := &flags{}
	cmd := &cobra.Command{Use: component}
	f.addTo(cmd)
	return f, cmd.ParseFlags(args)
}

// Upstream's flags are there, with its defaults unless docs/compatibility.md says
// otherwise.
func TestUpstreamFlags(t *testing.T) {
	f := testutil.Must(parse(t))(t)
	testutil.CheckUpstreamFlags(t, "agent", f.set, "konnectivity-agent", "klog")
	testutil.CheckDocumentedFlags(t, f.set, "docs/flags.md#konnectivity-agent", "docs/flags.md#Logging")
}

func TestValidation(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	testutil.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
	for _, c := range []struct {
		args string
		want string // in the error; "" for none
		exit int
	}{
		{"", "", 0},
		{"--agent-cert=" + file + " --agent-key=" + file + " --ca-cert=" + file, "", 0},
		{"--proxy-server-host=a.example --proxy-server-host=b.example,[2001:db8::1],2001:db8::2,c.example:9", "", 0},
		{"--server-count-source=", "", 0},
		{"--server-count-source=max --sync-forever --count-server-leases --lease-label-selector=a=b,c!=d", "", 0},
		{"--lease-label=a=b --lease-label-selector=c=d", "", 0},
		{"--lease-label-selector=c=d --lease-label=a=b", "", 0},
		{"--allow-destination=10.0.0.0/8,*.example.com:443 --deny-destination=[fd00::/8]:1-10", "", 0},
		{"--sync-interval=10s --sync-interval-cap=10s --graceful-shutdown-timeout=0 --alpn-proto=a,b", "", 0},
		{"--agent-cert=" + file, "--agent-cert is given without --agent-key", cli.ExitUsage},
		{"--agent-key=" + file, "--agent-key is given without --agent-cert", cli.ExitUsage},
		{"--ca-cert=" + dir + "/none", "--ca-cert: " + dir + "/none: no such file", cli.ExitFailure},
		{"--ca-cert=" + dir, "is a directory", cli.ExitFailure},
		{"--kubeconfig=/none", "--kubeconfig: /none", cli.ExitFailure},
		{"--service-account-token-path=/none", "--service-account-token-path: /none", cli.ExitFailure},
		{"--proxy-server-port=0", "--proxy-server-port=0", cli.ExitUsage},
		{"--health-server-port=-1", "--health-server-port=-1", cli.ExitUsage},
		{"--admin-server-port=65536", "--admin-server-port=65536", cli.ExitUsage},
		{"--health-server-port=8094", "both 8094", cli.ExitUsage},
		{"--xfr-channel-size=0", "--xfr-channel-size=0", cli.ExitUsage},
		{"--enable-contention-profiling", "--enable-contention-profiling needs --enable-profiling", cli.ExitUsage},
		{"--sync-interval=11s", "--sync-interval=11s", cli.ExitUsage},
		{"--sync-interval=0", "--sync-interval=0s", cli.ExitUsage},
		{"--sync-interval-cap=-1s", "--sync-interval-cap=-1s", cli.ExitUsage},
		{"--probe-interval=0", "--probe-interval=0s", cli.ExitUsage},
		{"--dial-timeout=0", "--dial-timeout=0s", cli.ExitUsage},
		{"--keepalive-time=-1s", "--keepalive-time=-1s: must not be negative", cli.ExitUsage},
		{"--graceful-shutdown-timeout=-1s", "--graceful-shutdown-timeout=-1s: must not be negative", cli.ExitUsage},
		{"--sync-interval=9ms", "--sync-interval=9ms: must be at least 10ms", cli.ExitUsage},
		{"--sync-interval=10ms --sync-interval-cap=2562047h", "", 0},
		{"--allow-destination=", "--allow-destination is empty", cli.ExitUsage},
		{"--peer-trust-domain=", "--peer-trust-domain is empty", cli.ExitUsage},
		{"--deny-destination=", "--deny-destination is empty", cli.ExitUsage},
		{"--policy-file=", "--policy-file is empty", cli.ExitUsage},
		{"--proxy-server-host=a:b:c", "--proxy-server-host", cli.ExitUsage},
		{"--proxy-server-host=fe80::1%eth0", "", 0},
		{"--max-servers=-1", "--max-servers=-1: want a number from 0 (all) to 256", cli.ExitUsage},
		{"--link-lanes=0", "--link-lanes=0: want a number from 1 (off) to 8", cli.ExitUsage},
		{"--link-lanes=9", "--link-lanes=9: want a number from 1", cli.ExitUsage},
		{"--resume-window=-1s", "--resume-window=-1s: want a duration", cli.ExitUsage},
		{"--resume-window=10m1s", "--resume-window=10m1s: want a duration", cli.ExitUsage},
		{"--memory-budget-mib=-1", "--memory-budget-mib=-1: want a number from 1 to 1048576", cli.ExitUsage},
		{"--memory-budget-mib=8796093022208", "--memory-budget-mib=8796093022208: want a number", cli.ExitUsage},
		{"--server-name=a.example", "", 0},
		{"--server-name=10.0.0.1", "--server-name=10.0.0.1: TLS asks for names", cli.ExitUsage},
		{"--server-name=a.example:8091", "--server-name", cli.ExitUsage},
		{"--link=maybe", "must be one of auto, off, require", cli.ExitUsage},
		{"--server-count-source=stars", "must be one of default, max", cli.ExitUsage},
		{"--api-server=10.0.0.9:6443,api.example:443 --max-servers=2", "", 0},
		{"--api-server=10.0.0.9", `--api-server: "10.0.0.9": want HOST:PORT`, cli.ExitUsage},
		{"--api-server=a:1,b:1,c:1,d:1,e:1", "--api-server: 5 addresses", cli.ExitUsage},
		{"--api-server=a:1 --api-bind=127.0.0.1:6443", "--api-server and --api-bind exclude each other", cli.ExitUsage},
		{"--api-server=a:1 --agent-identifiers=host=a", "--api-server and --agent-identifiers exclude each other", cli.ExitUsage},
		{"--api-server=a:1 --service-account-token-path=" + file, "--api-server and --service-account-token-path exclude each other", cli.ExitUsage},
		{"--api-server=a:1 --link=off", "--api-server and --link=off exclude each other", cli.ExitUsage},
		{"--agent-identifiers=mac=1", "--agent-identifiers", cli.ExitUsage},
		{"--agent-identifiers=host=%zz", "--agent-identifiers", cli.ExitUsage},
		{"--agent-id=a\nb", "--agent-id", cli.ExitUsage},
		{"--agent-id=" + strings.Repeat("a", 513), "--agent-id: an id has at most 512", cli.ExitUsage},
		{"--lease-label-selector=a=b=c", "--lease-label-selector", cli.ExitUsage},
		{"--lease-label-selector=a --lease-label=b=c=d", "b=c=d", cli.ExitUsage},
		{"--proxy-server-host=", "--proxy-server-host", cli.ExitUsage},
		{"--proxy-server-host=http://a", "--proxy-server-host", cli.ExitUsage},
		{"--proxy-server-host=a:0", "--proxy-server-host", cli.ExitUsage},
		{"--alpn-proto=" + strings.Repeat("a", 256), "--alpn-proto", cli.ExitUsage},
		{"--allow-destination=10.0.0.0/33", "--allow-destination", cli.ExitUsage},
		{"--deny-destination=a:x", "--deny-destination", cli.ExitUsage},
	} {
		t.Run(fmt.Sprintf("%.60s", c.args), func(t *testing.T) {
			f, err := parse(t, strings.Split(c.args, " ")...)
			if c.args == "" {
				f, err = parse(t)
			}
			isUsage := err != nil
			if err == nil {
				var usage *cli.UsageError
				err = f.validate()
				isUsage = errors.As(err, &usage)
			}
			if c.want == "" {
				testutil.Succeeds(t, err, "refused")
				return
			}
			testutil.Requires(t, err != nil && strings.Contains(err.Error(), c.want),
				"got %v, want it to say %q", err, c.want)
			testutil.Equal(t, isUsage, c.exit == cli.ExitUsage, "a usage error")
		})
	}
}

func TestServerName(t *testing.T) {
	f := testutil.Must(parse(t, "--server-name=cluster-a.example.com"))(t)
	p := &process{flags: f, certificates: new(tlsreload.Source)}
	testutil.Equal(t, testutil.Must(p.options())(t).ServerName, "cluster-a.example.com", "what the agent asks for")
}

// Where the agent looks for servers. By default, one beside the API server asks for their port
// for clients.
func TestServers(t *testing.T) {
	for args, want := range map[string]string{
		"a.example":             "a.example:8091",
		"a.example:9":           "a.example:9",
		"192.0.2.1,192.0.2.2:9": "192.0.2.1:8091 192.0.2.2:9",
		"2001:db8::1":           "[2001:db8::1]:8091",
		"[2001:db8::1]":         "[2001:db8::1]:8091",
		"[2001:db8::1]:9":       "[2001:db8::1]:9",
		"s --api-server=a:1":    "s:8090",
		"s --api-server=a:1 --proxy-server-port=8091":    "s:8091",
		"s --api-bind=127.0.0.1:6443":                    "s:8091",
		"s --api-server=a:1 --proxy-server-host=other:1": "s:8090 other:1",
	} {
		f := testutil.Must(parse(t, strings.Fields("--proxy-server-host="+args)...))(t)
		testutil.Succeeds(t, f.validate(), "%s", args)
		testutil.Equal(t, strings.Join(f.options.Servers, " "), want, "%s", args)
	}
}

func TestAgentID(t *testing.T) {
	for _, c := range []struct{ environment, flag, want string }{
		{"from-environment", "", "from-environment"}, {"from-environment", "from-flag", "from-flag"}, {"", "", ""},
	} {
		t.Setenv("PROXY_AGENT_ID", c.environment)
		f, _ := parse(t, "--agent-id="+c.flag)
		opts := testutil.Must((&process{flags: f, certificates: new(tlsreload.Source)}).options())(t)
		testutil.Equal(t, f.agentID(), c.want, "the id that is set by %+v", c)
		testutil.Holds(t, opts.ID != "" && (opts.ID == c.want || c.want == ""), "%+v: the id is %q", c, opts.ID)
	}
}

// An agent that is started anew in its place has its id again, and no other has it.
func TestDefaultID(t *testing.T) {
	args := []string{"konnectivity-agent", "--health-server-port=1"}
	id := defaultID(args)
	testutil.Equal(t, defaultID(args) == id, runtime.GOOS == "linux", "one started anew has the id")
	testutil.Holds(t, id != defaultID([]string{args[0], "--health-server-port=2"}), "two agents of a host have the id %s", id)
	testutil.Succeeds(t, uuid.Validate(id), "the id")
}

// Two names of one flag: the later one counts, as in upstream's agent.
func TestLeaseLabelIsAnAlias(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--lease-label=a=b", "a=b"},
		{"--lease-label=a=b --lease-label-selector=c=d", "c=d"},
		{"--lease-label-selector=c=d --lease-label=a=b", "a=b"},
	} {
		f := testutil.Must(parse(t, strings.Fields(c.args)...))(t)
		testutil.Equal(t, f.leaseSelector, c.want, "by %s, leases are counted by", c.args)
	}
}

func TestNotes(t *testing.T) {
	f, _ := parse(t)
	testutil.Equal(t, len(f.notes()), 0, "notes without flags")
	f, _ = parse(t, "--probe-interval=1s", "--xfr-channel-size=9", "--warn-on-channel-limit", "--lease-label=a=b")
	testutil.Equal(t, len(f.notes()), 4, "notes")
}

// started runs the program until stop is called, at the end of the test at the latest.
func started(t *testing.T, args ...string) (stop func()) {
	t.Helper()
	cmd := newCommand()
	cmd.SetArgs(args)
	ctx, cancel := context.WithCancel(context.Background())
	done := testutil.Later(func() error { return cmd.ExecuteContext(ctx) })
	t.Cleanup(cancel)
	return func() {
		t.Helper()
		cancel()
		testutil.NoError(t, testutil.Receive(t, "the agent ends", done))
	}
}

// get asks for a path, and waits until there is an answer.
func get(t *testing.T, port int, path string) (int, string, http.Header) {
	t.Helper()
	client := &http.Client{
		Timeout:       time.Minute,
		Transport:     &http.Transport{DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	var response *http.Response
	testutil.Eventually(t, "an answer to "+path, func() bool {
		var err error
		response, err = client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
		return err == nil
	})
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	return response.StatusCode, string(body), response.Header
}

// The agent reaches servers through the proxy of the environment, with its user and
// password, unless NO_PROXY has the server.
func TestProxyOfTheEnvironment(t *testing.T) {
	asked := make(chan *http.Request, 100)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusBadGateway)
		select {
		case asked <- r:
		default: // it comes again and again
		}
	}))
	defer proxy.Close()
	t.Setenv("HTTPS_PROXY", strings.Replace(proxy.URL, "http://", "http://me:s3cret@", 1))
	t.Setenv("NO_PROXY", ".direct.example")
	health := testutil.Reserved(t)
	stop := started(t,
		"--proxy-server-host=server.example:8443,server.direct.example", "--health-server-host=127.0.0.1", "--health-server-port="+strconv.Itoa(health),
		"--admin-server-port=0", "--log-level=error", "--sync-interval=10ms", "--sync-interval-cap=20ms")
	for range 3 {
		r := <-asked
		user, password, _ := (&http.Request{Header: http.Header{"Authorization": r.Header["Proxy-Authorization"]}}).BasicAuth()
		testutil.Holds(t, r.Method == http.MethodConnect && r.Host == "server.example:8443" && user == "me" &&
			password == "s3cret", "the proxy was asked for %s %s by %q, %q", r.Method, r.Host, user, password)
	}
	stop()
}

// An invalid proxy is reported at the start, without its password. It is an error if
// destinations are reached through it.
func TestInvalidProxyOfTheEnvironment(t *testing.T) {
	t.Setenv("NO_PROXY", "*")
	const ignored, used = "it is ignored", "cannot be reached through it"
	for text, want := range map[string]string{
		"": "", "proxy.example:3128": "", "http://me:s3cret@proxy.example\n": "",
		"http://me:s3cret%@proxy.example": ignored, "socks5://me:s3cret@proxy.example": used,
		"me:s3cret%@proxy.example": used, "http://me:s3cret@proxy.example:port": used, // as httpproxy reads them
	} {
		t.Setenv("HTTPS_PROXY", text)
		for _, egress := range []bool{false, true} {
			log, lines := logrustest.NewNullLogger()
			p := &process{flags: &flags{egressProxy: egress}, Base: program.Base{Log: log}}
			_, err := p.environmentProxy()
			said := ""
			if err != nil {
				said = err.Error()
			}
			for _, e := range lines.AllEntries() {
				said += e.Message
			}
			if (err != nil) != (want != "" && egress) || (said == "") != (want == "") || !egress && !strings.Contains(said, want) || strings.Contains(said, "s3cret") {
				t.Errorf("%q, for destinations, too: %v: %q, %v", text, egress, said, err)
			}
		}
	}
}

// The program without a server: alive, not ready with the reason, its metrics
// there; and it ends in order.
func TestEndpoints(t *testing.T) {
	health, adminPort := testutil.Reserved(t), testutil.Reserved(t)
	policy := filepath.Join(t.TempDir(), "policy.yaml")
	testutil.NoError(t, os.WriteFile(policy, []byte("version: 1\nmode: report\nrules:\n- {name: a, action: allow, who: ['*'], where: ['*']}\n"), 0o600))
	stranger := httptest.NewUnstartedServer(nil)
	stranger.EnableHTTP2, stranger.Config.ErrorLog = true, log.New(io.Discard, "", 0)
	stranger.StartTLS()
	defer stranger.Close()
	stop := started(t,
		"--proxy-server-host="+stranger.Listener.Addr().String(), "--health-server-host=127.0.0.1", "--policy-file="+policy,
		"--health-server-port="+strconv.Itoa(health), "--admin-server-port="+strconv.Itoa(adminPort), "--enable-profiling", "--log-level=error")
	const unready = "[+]ping ok\n[-]server-connected failed: no servers connected\n"
	for _, c := range []struct {
		port int
		path string
		code int
		says string
	}{
		{health, "/healthz", 200, "ok"},
		{health, "/readyz", 503, unready},
		{health, "/ready", 503, unready},
		{health, "/metrics", 200, "konnectivity_network_proxy_agent_open_server_connections 0"},
		{health, "/api/v1/status", 404, ""}, // who connects whereto
		{adminPort, "/debug/pprof/", 200, ""},
	} {
		code, body, _ := get(t, c.port, c.path)
		testutil.Equal(t, code, c.code, "%s", c.path)
		testutil.Contains(t, body, c.says, "%s", c.path)
	}
	if code, _, header := get(t, adminPort, "/metrics"); code != 301 || header.Get("Location") != fmt.Sprintf("http://127.0.0.1:%d/metrics", health) {
		t.Errorf("admin /metrics: %d %v", code, header)
	}
	testutil.Eventually(t, "the status tells of an attempt that failed, and why", func() bool {
		code, body, _ := get(t, adminPort, "/api/v1/status")
		return code == 200 && strings.Contains(body, `"reason":"no servers connected: 127.0.0.1:`) && strings.Contains(body, "which count without --ca-cert")
	})
	testutil.NoError(t, os.WriteFile(policy, []byte("version: 2"), 0o600))
	testutil.Eventually(t, "the status tells what is wrong with the policy file", func() bool {
		_, body, _ := get(t, adminPort, "/api/v1/status")
		return strings.Contains(body, `"policyError":"version: 2 `)
	})
	stop()
}

// Port 0 is no admin port, as at the server.
func TestAdminPortIsOff(t *testing.T) {
	f, err := parse(t, "--admin-server-port=0")
	if err == nil {
		err = f.validate()
	}
	testutil.NoError(t, err)
	p := &process{flags: f, Base: program.New(component, logrus.New())}
	f.health.Host, f.health.Number = "127.0.0.1", testutil.Reserved(t)
	testutil.NoError(t, p.listen())
	testutil.Holds(t, p.admin == nil, "there is an admin port")
	err = p.build()
	testutil.Holds(t, err == nil && p.table == nil, "%v %v", err, p.table)
	ctx, cancel := context.WithCancel(context.Background())
	done := testutil.Later(func() error { return p.serve(ctx) })
	code, _, _ := get(t, f.health.Number, "/healthz")
	testutil.Holds(t, code == 200, "%v", code)
	cancel()
	testutil.NoError(t, <-done)
	p.close()
}

// What cannot start says why, naming the flag or the file.
func TestStartErrors(t *testing.T) {
	busy := testutil.Listen(t)
	port := strconv.Itoa(busy.Addr().(*net.TCPAddr).Port)
	dir := t.TempDir()
	pair := func(name string) (cert, key string) {
		ca := testutil.Must(pki.NewCA(name))(t)
		leaf := testutil.Must(ca.Issue(pki.Leaf{CommonName: name, Client: true}))(t)
		cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
		for path, content := range map[string][]byte{cert: leaf.CertPEM, key: leaf.KeyPEM} {
			testutil.NoError(t, os.WriteFile(path, content, 0o600))
		}
		return cert, key
	}
	cert, _ := pair("one")
	_, key := pair("two")
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, c := range map[string]struct{ args, want string }{
		"health port": {"--health-server-host=127.0.0.1 --health-server-port=" + port, "--health-server-port"},
		"admin port":  {"--admin-server-port=" + port, "--admin-server-port"},
		"mismatch":    {"--agent-cert=" + cert + " --agent-key=" + key, "one.crt"},
		"no cluster":  {"--count-server-leases", "--kubeconfig"},
	} {
		args := append(strings.Split(c.args, " "), "--log-level=error")
		for _, flag := range []string{"health-server", "admin-server"} {
			if !strings.Contains(c.args, flag+"-port") {
				args = append(args, "--"+flag+"-port="+strconv.Itoa(testutil.Reserved(t)))
			}
		}
		var stderr bytes.Buffer
		if status := cli.Run(newCommand(), args, &stderr, nil); status != cli.ExitFailure || !strings.Contains(stderr.String(), c.want) || strings.Count(stderr.String(), "\n") != 1 {
			t.Errorf("%s: status %d, said %q, want %q", name, status, stderr.String(), c.want)
		}
	}
	var stderr bytes.Buffer
	testutil.Equal(t, cli.Run(newCommand(), []string{"--no-such-flag"}, &stderr, nil), cli.ExitUsage, "an unknown flag")
}

// The ports go to the next agent as it starts, and come back if that ends first.
func TestPortsGoToTheNextAgent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("agents hand over on Linux only")
	}
	args := []string{
		"--proxy-server-host=127.0.0.1", "--proxy-server-port=" + strconv.Itoa(testutil.Reserved(t)), "--health-server-host=127.0.0.1",
		"--graceful-shutdown-timeout=0", "--log-level=error", "--handover-socket=" + filepath.Join(t.TempDir(), "handover"),
	}
	health, adminPort := testutil.Reserved(t), testutil.Reserved(t)
	args = append(args, "--health-server-port="+strconv.Itoa(health), "--admin-server-port="+strconv.Itoa(adminPort))
	await := func(profiles int) { // 200 by an agent that serves profiles, else 404
		t.Helper()
		testutil.Eventually(t, "the other agent answers", func() bool { code, _, _ := get(t, adminPort, "/debug/pprof/"); return code == profiles })
		code, _, _ := get(t, health, "/healthz")
		testutil.Holds(t, code == 200, "/healthz: %d", code)
	}
	stopFirst := started(t, args...)
	await(404)
	stopNext := started(t, append(args, "--enable-profiling")...)
	await(200)
	stopNext()
	await(404)
	stopFirst()
}

// A rollout that starts the next agent first ends the one before once the next one runs: that
// waits for the ports, also where its user may not use the socket.
func TestPortsAreWaitedForWithoutTheSocket(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("agents hand over on Linux only")
	}
	busy := testutil.Listen(t)
	log, _ := logrustest.NewNullLogger()
	p := &process{Base: program.Base{Log: log}, flags: testutil.Must(parse(t, "--handover-socket=/dev/pts/handover", "--health-server-host=127.0.0.1", "--health-server-port="+strconv.Itoa(testutil.Reserved(t)),
		"--admin-server-port="+strconv.Itoa(busy.Addr().(*net.TCPAddr).Port)))(t)}
	testutil.NoError(t, p.listen())
	defer p.close()
	testutil.Holds(t, p.handover == nil, "it has a socket there")
	testutil.Holds(t, p.health.(*port).l != nil, "it waits for a port that nobody else has")
	testutil.NoError(t, busy.Close())
	testutil.Holds(t, p.admin.(*port).listener() != nil, "it has no port though that is free")
}

// A socket for nodes that something else removed is logged.
func TestSocketForNodesThatWasRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "api")
	log, lines := logrustest.NewNullLogger()
	l := testutil.Must(apiPlace{unixPrefix + path, log}.Listen())(t)
	over := make(chan struct{})
	go func() {
		defer close(over)
		_, _ = l.Accept()
	}()
	testutil.NoError(t, os.Remove(path))
	testutil.Eventually(t, "the log says that it is there again", func() bool { return testutil.Lines(lines, "it is there again") == 1 })
	testutil.NoError(t, l.Close())
	<-over
}
