package main

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/goleak"

	"konnectivity/internal/cli"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// files writes a PKI and returns the flags that name it.
func files(t *testing.T) map[string]string {
	t.Helper()
	dir := t.TempDir()
	ca := testutil.Must(pki.NewCA("ca"))(t)
	leaf := testutil.Must(ca.Issue(pki.Leaf{CommonName: "x", DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true, Client: true}))(t)
	other := testutil.Must(ca.Issue(pki.Leaf{CommonName: "y", Server: true}))(t)
	out := make(map[string]string)
	for name, data := range map[string][]byte{"ca": ca.CertPEM, "cert": leaf.CertPEM, "key": leaf.KeyPEM, "otherkey": other.KeyPEM, "broken": []byte("nonsense"),
		"crl":   testutil.Must(ca.Revoke(time.Now().Add(time.Hour), leaf.TLS().Leaf))(t), // of cert
		"allow": []byte("* host=a"), "badallow": []byte("* ipv4=a")} {
		out[name] = filepath.Join(dir, name)
		testutil.NoError(t, os.WriteFile(out[name], data, 0o600))
	}
	out["dir"] = dir
	return out
}

// expand replaces {name} by the file of that name.
func expand(args string, files map[string]string) []string {
	var out []string
	for _, a := range strings.Fields(args) {
		for name, path := range files {
			a = strings.ReplaceAll(a, "{"+name+"}", path)
		}
		out = append(out, a)
	}
	return out
}

// with is a command line that is right, with changes; a later flag wins.
const (
	clients = "--server-cert={cert} --server-key={key} --server-ca-cert={ca} "
	agents  = "--cluster-cert={cert} --cluster-key={key} --cluster-ca-cert={ca} "
	tokens  = "--cluster-cert={cert} --cluster-key={key} --agent-namespace=n --agent-service-account=a --authentication-audience=x "
	right   = clients + agents
)

func parse(t *testing.T, args []string) (*flags, error) {
	t.Helper()
	f := &flags{}
	cmd := &cobra.Command{Use: "x"}
	f.addTo(cmd)
	if err := cmd.ParseFlags(args); err != nil {
		return f, err
	}
	return f, f.validate()
}

func TestValidFlags(t *testing.T) {
	files := files(t)
	for _, args := range []string{
		right,
		right + "--mode=grpc", right + "--mode=http-connect",
		right + "--link=off", right + "--link=require",
		agents + "--uds-name={dir}/s --server-port=0 --mode=grpc",
		agents + "--uds-name={dir}/s", // upstream wants --server-port=0 here; 8090 is only the default
		right + "--uds-name={dir}/s",  // both
		clients + tokens,
		clients + "--cluster-cert={cert} --cluster-key={key} --allow-unauthenticated-agents",
		right + "--server-port=80 --agent-port=65000 --health-port=0 --admin-port=0",
		right + "--health-port=8095 --health-bind-address=127.0.0.2",
		right + "--proxy-strategies=destHost,destCIDR,defaultRoute,default",
		right + "--tls-min-version=VersionTLS13", right + "--tls-min-version=VersionTLS10",
		right + "--cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
		right + "--cipher-suites=", // as of a TLS profile without suites of TLS 1.2
		right + "--graceful-shutdown-timeout=0 --backend-dial-timeout=0",
		right + "--keepalive-time=1h --frontend-keepalive-time=30s",
		right + "--enable-profiling --enable-contention-profiling",
		right + "--enable-lease-controller --lease-label=a=b,c=d --server-id=server-1.example",
		right + "--admin-cert={cert} --admin-key={key}", right + "--admin-cert={cert} --admin-key={key} --admin-ca-cert={ca}",
		right + "--tenants-dir={dir}", right + "--tenants-namespace=tenants",
		right + "--tenants-namespace=tenants --tenants-selector=konnectivity-tenant,cell!=2",
		right + "--agent-identifier-policy=certificate --agent-identifier-allow-file={allow}",
		right + "--agent-id-policy=certificate",
		right + "--client-access-review --client-kubeconfig={cert}",
		right + "--client-service-accounts=a/b,c/d.e --client-authentication-audience=k --client-kubeconfig={cert}",
		agents + "--server-cert={cert} --server-key={key} --client-service-accounts=a/b --client-authentication-audience=k", // no certificates of clients
		right + "--agent-proxy-protocol-from=10.0.0.0/8,2001:db8::1 --agent-proxy-protocol-from=192.0.2.1",
		right + "--allow-destination=10.0.0.0/8:443 --deny-destination=*.example --allow-destination=[2001:db8::/32]",
		right + "--kubeconfig={cert} --kubeconfig-qps=20.5 --kubeconfig-burst=30 --kube-api-content-type=application/json",
		right + "--server-count=3 --server-id=Any.Id_1",
		right + "--xfr-channel-size=200 --warn-on-channel-limit=false",
		right + "--v=5 --vmodule=a=2 --logtostderr=true --alsologtostderr=false --log-dir= --log-file-max-size=1800 --stderrthreshold=2 --one-output=false --skip-headers --skip-log-headers --add-dir-header",
		right + "--log-level=debug --log-format=json --memory-budget-mib=64 --max-connections=100",
		// As HyperShift starts it:
		clients + agents + "--logtostderr=true --log-file-max-size=0 --server-port=8090 --agent-port=8091 --health-port=2041 --admin-port=8093 --mode=http-connect --proxy-strategies=destHost,defaultRoute --keepalive-time=30s --frontend-keepalive-time=30s --server-count=1 --cipher-suites=TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
		// As kubeadm users do, with a service account:
		"--uds-name={dir}/s --delete-existing-uds-file --server-port=0 --agent-port=8132 --admin-port=8133 --health-port=8134 --mode=grpc --agent-namespace=kube-system --agent-service-account=konnectivity-agent --kubeconfig={cert} --authentication-audience=system:konnectivity-server --cluster-cert={cert} --cluster-key={key} --logtostderr=true",
	} {
		testutil.Succeeds(t, testutil.Err(parse(t, expand(args, files))), "%s", args)
	}
}

func TestInvalidFlags(t *testing.T) {
	files := files(t)
	for _, tc := range []struct{ args, says string }{
		{"", "no port for clients"},
		{agents, "no port for clients"},
		{clients, "--cluster-cert and --cluster-key are missing"},
		{right + "--server-port=0", "--server-port is 0"},
		{agents + "--server-cert={cert}", "--server-cert is given without --server-key"},
		{agents + "--server-key={key}", "--server-key is given without --server-cert"},
		{clients + "--cluster-cert={cert}", "--cluster-cert is given without --cluster-key"},
		{clients + "--cluster-key={key}", "--cluster-key is given without --cluster-cert"},
		{agents + "--server-cert={cert} --server-key={key}", "--server-ca-cert is missing"},
		{agents + "--server-ca-cert={ca} --uds-name=/s", "--server-ca-cert needs"},
		{agents + "--uds-name=/s --server-port=8090", "--server-port=8090 needs"},
		{clients + "--cluster-cert={cert} --cluster-key={key}", "--allow-unauthenticated-agents"},
		{clients + tokens + "--cluster-ca-cert={ca}", "exclude each other"},
		{clients + "--cluster-cert={cert} --cluster-key={key} --agent-namespace=n", "--agent-service-account is missing"},
		{clients + "--cluster-cert={cert} --cluster-key={key} --agent-namespace=n --agent-service-account=a", "--authentication-audience is missing"},
		{clients + "--cluster-cert={cert} --cluster-key={key} --authentication-audience=n", "--agent-namespace is missing"},
		{right + "--mode=tcp", "must be one of grpc, http-connect"},
		{right + "--link=on", "must be one of auto, off, require"},
		{right + "--client-service-accounts=a/b", "--client-authentication-audience is missing"},
		{right + "--client-service-accounts=a:b --client-authentication-audience=k", "--client-service-accounts=a:b: want NAMESPACE/NAME"},
		{right + "--client-authentication-audience=k", "needs --client-service-accounts"},
		{right + "--client-kubeconfig={cert}", "needs --client-service-accounts or --client-access-review"},
		{agents + "--uds-name={dir}/s --client-service-accounts=a/b --client-authentication-audience=k", "a unix socket has no tokens"},
		{right + "--agent-id-policy=some", "must be one of any, certificate"},
		{clients + tokens + "--agent-id-policy=certificate", "--agent-id-policy=certificate needs --cluster-ca-cert"},
		{right + "--agent-identifier-policy=some", "must be one of any, certificate"},
		{right + "--agent-identifier-allow-file={allow}", "--agent-identifier-policy=certificate"},
		{right + "--agent-proxy-protocol-from=balancer.example", "--agent-proxy-protocol-from: \"balancer.example\""},
		{right + "--proxy-strategies=random", "destHost, destCIDR or defaultRoute"},
		{right + "--proxy-strategies=", "--proxy-strategies"},
		{right + "--tls-min-version=1.2", "--tls-min-version"},
		{right + "--cipher-suites=TLS_RSA_WITH_RC4_128_SHA", "--cipher-suites"},
		{right + "--cipher-suites=nonsense", "--cipher-suites"},
		{right + "--graceful-shutdown-timeout=-1s", "must not be negative"},
		{right + "--backend-dial-timeout=-1s", "must not be negative"},
		{right + "--resume-window=-1s", "--resume-window=-1s: want a duration from 0 (off) to 10m0s"},
		{right + "--resume-window=10m1s", "--resume-window=10m1s: want a duration"},
		{right + "--keepalive-time=0", "--keepalive-time=0s: must be at least 1s"},
		{right + "--frontend-keepalive-time=-5s", "--frontend-keepalive-time"},
		{right + "--server-count=0", "--server-count=0: must be at least 1"},
		{right + "--xfr-channel-size=0", "--xfr-channel-size"},
		{right + "--max-connections=0", "--max-connections"},
		{right + "--memory-budget-mib=-1", "--memory-budget-mib=-1: want a number from 1 to 1048576"},
		{right + "--memory-budget-mib=1048577", "--memory-budget-mib=1048577: want a number"},
		{right + "--allow-destination=", "--allow-destination is empty"},
		{right + "--deny-destination=", "--deny-destination is empty"},
		{right + "--policy-file=", "--policy-file is empty"},
		{right + "--agent-proxy-protocol-from=", "--agent-proxy-protocol-from is empty"},
		{right + "--peer-trust-domain=", "--peer-trust-domain is empty"},
		{right + "--agent-identifier-allow-file=", "--agent-identifier-allow-file is empty"},
		{right + "--admin-token-file=", "--admin-token-file is empty"},
		{right + "--admin-ca-cert= --admin-cert={cert} --admin-key={key}", "--admin-ca-cert is empty"},
		{right + "--kubeconfig-qps=-1", "--kubeconfig-qps"},
		{right + "--kubeconfig-qps=NaN", "--kubeconfig-qps=NaN: must be a number"},
		{right + "--kubeconfig-qps=Inf", "--kubeconfig-qps=+Inf: must be a number"},
		{right + "--kubeconfig-burst=-1", "--kubeconfig-burst"},
		{right + "--server-port=65536", "--server-port=65536: must be from 0 to 65535"},
		{right + "--agent-port=0", "--agent-port=0: it must be from 1 to 65535"},
		{right + "--health-port=-1", "--health-port"},
		{right + "--admin-port=70000", "--admin-port"},
		{right + "--agent-port=8090", "--agent-port and --server-port are both 8090"},
		{right + "--health-port=8095", "--health-port and --admin-port are both 8095"},
		{right + "--admin-cert={cert}", "--admin-cert is given without --admin-key"},
		{right + "--admin-key={key}", "--admin-key is given without --admin-cert"},
		{right + "--admin-ca-cert={ca}", "--admin-ca-cert needs --admin-cert"},
		{right + "--admin-cert={cert} --admin-key={key} --admin-ca-crl={ca}", "--admin-ca-crl needs --admin-ca-cert"},
		{right + "--admin-port=0 --admin-cert={cert} --admin-key={key}", "--admin-cert needs --admin-port"},
		{right + "--admin-cert={cert} --admin-key=/no/such", "--admin-key: /no/such"},
		{right + "--enable-contention-profiling", "needs --enable-profiling"},
		{right + "--tenants-dir={dir} --tenants-namespace=tenants", "exclude each other"},
		{agents + "--uds-name={dir}/s --tenants-dir={dir}", "--tenants-dir needs --server-port"},
		{agents + "--uds-name={dir}/s --tenants-namespace=tenants", "--tenants-namespace needs --server-port"},
		{right + "--tenants-namespace=a/b", "--tenants-namespace"},
		{right + "--tenants-selector=a", "--tenants-selector needs --tenants-namespace"},
		{right + "--tenants-namespace=tenants --tenants-selector==", "--tenants-selector"},
		{right + "--tenants-namespace=tenants --tenants-selector=", "--tenants-selector is empty"},
		{right + "--enable-lease-controller --lease-label=x", "--lease-label"},
		{right + "--enable-lease-controller --lease-label=", "--lease-label"},
		{right + "--enable-lease-controller --server-id=Upper_Case", "--server-id"},
		{right + "--api-server=10.0.0.9", "--api-server: \"10.0.0.9\": want HOST:PORT"},
		{right + "--api-server=agent,10.0.0.9:6443", "--api-server: agent,10.0.0.9:6443: either addresses or agent, not both"},
		{agents + "--uds-name={dir}/s --api-server=agent", "--api-server=agent needs --server-cert"},
		{right + "--peer-server-name=servers", "--peer-server-name needs --peer-servers or --peer-advertise-address"},
		{right + "--peer-servers=here", "--peer-servers=\"here\": want HOST:PORT"},
		{right + "--peer-servers=here:8097 --link=off", "--link=off excludes --peer-servers"},
		{right + "--peer-advertise-address=192.0.2.1 --peer-server-name=servers", "--peer-advertise-address needs --enable-lease-controller"},
		{right + "--enable-lease-controller --peer-advertise-address=192.0.2.1", "--peer-advertise-address needs --peer-server-name"},
		{right + "--enable-lease-controller --peer-advertise-address=:: --peer-server-name=servers", "--peer-advertise-address=\"::\""},
		{right + "--enable-lease-controller --peer-advertise-address=here --peer-server-name=servers", "--peer-advertise-address=\"here\""},
		{right + "--server-id=" + strings.Repeat("x", 600), "--server-id"},
		{right + "--server-id=a\x01b", "--server-id"},
		{right + "--allow-destination=10.0.0.0/99", "--allow-destination"},
		{right + "--deny-destination=a:b:c", "--deny-destination"},
		{right + "--server-cert=/no/such", "--server-cert: /no/such: no such file"},
		{right + "--server-ca-cert=/no/such", "--server-ca-cert: /no/such"},
		{right + "--cluster-key={dir}", "is a directory"},
		{right + "--kubeconfig=/no/such", "--kubeconfig: /no/such"},
		{right + "--nonsense", "unknown flag"},
		{right + "--keepalive-time=soon", "keepalive-time"},
	} {
		_, err := parse(t, expand(tc.args, files))
		testutil.Holds(t, err != nil && strings.Contains(err.Error(), tc.says) && !strings.Contains(err.Error(), "\n"),
			"%s\n%v\nwant %q", tc.args, err, tc.says)
	}
}

// Other servers' certificates are held to the agents' revocation lists where both have one CA,
// also where that is said.
func TestRevocationOfOtherServers(t *testing.T) {
	files := files(t)
	peers := right + "--cluster-ca-crl={allow} --peer-servers=here:8097 "
	agents, own := expand("{allow}", files)[0], expand("{key}", files)[0]
	for args, want := range map[string]string{
		peers: agents, peers + "--peer-ca-cert={ca}": agents, peers + "--peer-ca-cert={cert}": "",
		peers + "--peer-ca-crl={key}": own, peers + "--peer-ca-cert={ca} --peer-ca-crl={key}": own,
	} {
		testutil.Equal(t, testutil.Must(parse(t, expand(args, files)))(t).peer.CRL, want, "%s", args)
	}
}

// TestDefaults: every flag of upstream is there, with its default unless
// docs/compatibility.md says otherwise.
func TestDefaults(t *testing.T) {
	cmd := newCommand()
	testutil.CheckUpstreamFlags(t, "server", cmd.Flags(), "konnectivity-server", "klog")
	testutil.CheckDocumentedFlags(t, cmd.Flags(), "docs/flags.md#konnectivity-server", "docs/flags.md#Logging")
}

func TestServerID(t *testing.T) {
	for _, c := range []struct{ environment, flag, want string }{
		{"from-env", "", "from-env"}, {"from-env", "from-flag", "from-flag"}, {"", "", ""},
	} {
		t.Setenv("PROXY_SERVER_ID", c.environment)
		made := func() string {
			p := &process{flags: &flags{options: server.Options{ID: c.flag}}}
			testutil.NoError(t, p.settings())
			return p.options.ID
		}
		if a, b := made(), made(); c.want != "" && a != c.want || c.want == "" && (len(a) != 36 || a == b) {
			t.Errorf("%+v: made %q and %q", c, a, b)
		}
	}
}

// portFlags are the port flags, with ports of the test.
func portFlags(t *testing.T) (args string, health int) {
	t.Helper()
	for _, flag := range []string{"server", "agent", "health", "admin"} {
		port := testutil.Reserved(t)
		if flag == "health" {
			health = port
		}
		args += fmt.Sprintf("--%s-port=%d --%s-bind-address=127.0.0.1 ", flag, port, flag)
	}
	return args, health
}

// started runs the program until stop is called, which returns its exit status
// and what it wrote to standard error as its last words.
func started(t *testing.T, args []string) (stop func() (int, string)) {
	t.Helper()
	signals, status := make(chan os.Signal, 1), make(chan int, 1)
	var stderr bytes.Buffer
	go func() { status <- cli.Run(newCommand(), args, &stderr, signals) }()
	return func() (int, string) {
		select {
		case signals <- syscall.SIGTERM:
		default:
		}
		return testutil.Receive(t, "the program's end", status), stderr.String()
	}
}

// startedAt runs the program with more flags until the test ends. It returns the address
// of one of its ports, by the flag's name, and a certificate for it.
func startedAt(t *testing.T, port, more string) (address string, pair tls.Certificate) {
	t.Helper()
	files := files(t)
	ports, _ := portFlags(t)
	pair = testutil.Must(tls.LoadX509KeyPair(files["cert"], files["key"]))(t)
	stop := started(t, expand(right+ports+more, files))
	t.Cleanup(func() { stop() })
	_, rest, _ := strings.Cut(ports, "--"+port+"-port=")
	number, _, _ := strings.Cut(rest, " ")
	return "127.0.0.1:" + number, pair
}

func TestProgramStartsAndStops(t *testing.T) {
	files := files(t)
	ports, health := portFlags(t)
	stop := started(t, expand(right+ports+"--uds-name={dir}/s --log-file={dir}/log --logtostderr=false", files))
	url := fmt.Sprintf("http://127.0.0.1:%d/", health)
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	testutil.Eventually(t, "/healthz is well", func() bool {
		resp, err := client.Get(url + "healthz")
		if err == nil {
			resp.Body.Close()
		}
		return err == nil && resp.StatusCode == 200
	})
	if resp, err := client.Get(url + "readyz"); err != nil || resp.StatusCode != 500 {
		t.Errorf("ready without agents: %v, %v", resp, err)
	} else {
		resp.Body.Close()
	}
	testutil.Succeeds(t, testutil.Err(os.Stat(files["dir"]+"/s")), "the socket")
	status, said := stop()
	testutil.Holds(t, status == 0, "exit status %d: %s", status, said)
	testutil.ErrorIs(t, testutil.Err(os.Stat(files["dir"]+"/s")), os.ErrNotExist, "a socket that is left behind")
}

func TestStartErrors(t *testing.T) {
	files := files(t)
	ports, _ := portFlags(t)
	taken := testutil.Listen(t)
	port := taken.Addr().(*net.TCPAddr).Port
	testutil.NoError(t, os.WriteFile(files["dir"]+"/kubeconfig", []byte("{nonsense"), 0o600))
	for _, tc := range []struct {
		args   string
		status int
		says   string
	}{
		{right + ports + fmt.Sprintf("--server-port=%d", port), 1, "--server-port: cannot listen on 127.0.0.1:"},
		{right + ports + fmt.Sprintf("--agent-port=%d", port), 1, "address already in use"},
		{right + ports + fmt.Sprintf("--health-port=%d", port), 1, "--health-port"},
		{right + ports + fmt.Sprintf("--admin-port=%d", port), 1, "--admin-port"},
		{right + ports + "--server-key={otherkey}", 1, "otherkey"},
		{right + ports + "--cluster-ca-cert={broken}", 1, "broken"},
		{right + ports + "--policy-file={broken}", 1, "--policy-file: "},
		{right + ports + "--uds-name={ca}", 1, "not a socket"},
		{right + ports + "--agent-identifier-policy=certificate --agent-identifier-allow-file={badallow}", 1, "line 1"},
		{clients + tokens + ports, 1, "--kubeconfig"},
		{clients + tokens + ports + "--kubeconfig={dir}/kubeconfig", 1, "--kubeconfig="},
		{right + ports + "--enable-lease-controller", 1, "--enable-lease-controller needs --kubeconfig"},
		{right + ports + "--mode=tcp", 2, "--mode"},
		{right + "stray", 2, ""},
	} {
		var stderr bytes.Buffer
		ended := make(chan int, 1)
		go func() { ended <- cli.Run(newCommand(), expand(tc.args, files), &stderr, nil) }() // no signal stops it
		status := testutil.Receive(t, "the end of "+tc.args, ended)
		if said := stderr.String(); status != tc.status || !strings.Contains(said, tc.says) || strings.Count(strings.TrimSpace(said), "\n") > 1 {
			t.Errorf("%s\nexit status %d: %s\nwant %d, %q", tc.args, status, said, tc.status, tc.says)
		}
	}
	testutil.Contains(t, string(testutil.Must(os.ReadFile(files["ca"]))(t)), "CERTIFICATE", "a file given as --uds-name")
	// Nothing of all this is still listening.
	for arg := range strings.FieldsSeq(ports) {
		name, value, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !strings.HasSuffix(name, "-port") {
			continue
		}
		l, err := net.Listen("tcp", "127.0.0.1:"+value)
		if err != nil {
			t.Errorf("--%s: %v", name, err)
			continue
		}
		l.Close()
	}
}

// TestTLSFlagsAct: what the flags say of TLS is what a client meets.
func TestTLSFlagsAct(t *testing.T) {
	address, pair := startedAt(t, "server", "--tls-min-version=VersionTLS13")
	dial := func(most uint16) error {
		c, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true, MaxVersion: most, Certificates: []tls.Certificate{pair}})
		if err == nil {
			c.Close()
		}
		return err
	}
	testutil.Eventually(t, "a handshake of TLS 1.3", func() bool { return dial(tls.VersionTLS13) == nil })
	testutil.ErrorSays(t, dial(tls.VersionTLS12), "version", "TLS 1.2")
}

// TestAdminFlagsAct: the admin port speaks TLS, and asks for a certificate that is not revoked,
// or a token.
func TestAdminFlagsAct(t *testing.T) {
	for more, served := range map[string]bool{"": true, " --admin-ca-crl={crl}": false} {
		t.Run(fmt.Sprint(served), func(t *testing.T) { // one after the other: a program sets up the log of its process
			address, pair := startedAt(t, "admin", "--admin-cert={cert} --admin-key={key} --admin-ca-cert={ca}"+more)
			ask := func(certs ...tls.Certificate) (code int, err error) {
				client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: certs}}}
				resp, err := client.Get("https://" + address + "/api/v1/status")
				if err != nil {
					return 0, err
				}
				resp.Body.Close()
				return resp.StatusCode, nil
			}
			testutil.Eventually(t, "an answer to nobody", func() bool {
				code, err := ask()
				return err == nil && code == 401
			})
			code, err := ask(pair)
			testutil.Holds(t, (err == nil && code == 200) == served, "with a certificate: %d, %v", code, err)
		})
	}
}

func TestTenantsPageKnowsTheWait(t *testing.T) {
	testutil.Says(t, "../../docs/tenants.md", "starts meanwhile waits for at most %v s, then serves its own cluster", int64(tenantsWait/time.Second))
}
