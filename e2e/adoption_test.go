package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// recipe is what another project starts server and agent with: the arguments that
// its operator generates, word for word. docs/adoption.md says how ours get there.
type recipe struct {
	source        string // the files that generate them
	server, agent []string
	account       string // of agents, where they show tokens
	host          string // the destination's, as the agent's identifiers have it
}

// k0sServer is what k0s runs on each controller, and so k0smotron.
var k0sServer = []string{
	"--admin-port=8133", "--agent-namespace=kube-system", "--agent-port=8132", "--agent-service-account=konnectivity-agent",
	"--authentication-audience=system:konnectivity-server",
	"--cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256," +
		"TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
	"--cluster-cert=/var/lib/k0s/pki/server.crt", "--cluster-key=/var/lib/k0s/pki/server.key",
	"--delete-existing-uds-file=true", "--enable-profiling=false", "--graceful-shutdown-timeout=1ns",
	"--health-bind-address=localhost", "--health-port=8092", "--kubeconfig=/var/lib/k0s/pki/konnectivity.conf",
	"--logtostderr=true", "--mode=grpc", "--proxy-strategies=destHost,defaultRoute,default",
	"--server-count=1", "--server-id=<invocation>", "--server-port=0", "--stderrthreshold=1",
	"--uds-name=/run/k0s/konnectivity-server/konnectivity-server.sock", "--v=1",
}

// recipes follow the sources of these projects, each at the commit named. Values in
// angle brackets are what the operator fills in.
var recipes = map[string]recipe{
	// k0sproject/k0s dff90cee9a; the server's are the same in v1.36.3+k0s.2.
	"k0s": {
		source: "pkg/component/controller/konnectivity.go (serverArgs), konnectivityagent.go (konnectivityAgentTemplate)",
		server: k0sServer,
		agent: []string{
			"--logtostderr=true", "--ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
			"--proxy-server-host=<server>", "--proxy-server-port=8132",
			"--service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token",
			"--agent-identifiers=host=127.0.0.1", "--agent-id=127.0.0.1", // $(NODE_IP)
		},
		account: "konnectivity-agent", host: "127.0.0.1",
	},
	// clastix/kamaji ddbabd87ed.
	"Kamaji": {
		source: "internal/builders/controlplane/konnectivity_server.go (buildKonnectivityContainer), internal/resources/konnectivity/agent.go (mutate)",
		server: []string{
			"--admin-port=8133", "--agent-namespace=kube-system", "--agent-port=8132", "--agent-service-account=konnectivity-agent",
			"--authentication-audience=system:konnectivity-server",
			"--cluster-cert=/etc/kubernetes/pki/apiserver.crt", "--cluster-key=/etc/kubernetes/pki/apiserver.key",
			"--health-port=8134", "--kubeconfig=/etc/kubernetes/konnectivity-server.conf", "--mode=grpc",
			"--server-count=2", "--server-port=0", "--uds-name=/run/konnectivity/konnectivity-server.socket",
		},
		agent: []string{
			"--admin-server-port=8133", "--ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt", "--health-server-port=8134",
			"--logtostderr=true", "--proxy-server-host=<server>", "--proxy-server-port=8132",
			"--service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token", "-v=8",
		},
		account: "konnectivity-agent", host: "127.0.0.1",
	},
	// k0sproject/k0smotron 3897bbe645, with an ingress and a k0s before v1.35.1; otherwise
	// agents are k0s', too.
	"k0smotron": {
		source: "internal/controller/k0smotron.io/k0smotroncluster_ingress.go (generateKonnectivityIngressConfigMap)",
		server: k0sServer,
		agent: []string{
			"--logtostderr=true", "--ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
			"--proxy-server-host=<server>", "--proxy-server-port=443",
			"--service-account-token-path=/var/run/secrets/tokens/konnectivity-agent-token",
			"--agent-identifiers=host=127.0.0.1", "--agent-id=127.0.0.1", // $(NODE_IP)
		},
		account: "konnectivity-agent", host: "127.0.0.1",
	},
	// open-cluster-management-io/cluster-proxy 8165e8ef1f, for a managed cluster with the
	// name localhost.
	"OCM cluster-proxy": {
		source: "pkg/proxyserver/controllers/manifests.go (proxyServerArgs), pkg/proxyagent/agent/manifests/charts/addon-agent/templates/addon-agent-deployment.yaml, " +
			"pkg/proxyagent/agent/agent.go (agentIdentifiers)",
		server: []string{
			"--server-count=3", "--proxy-strategies=destHost",
			"--server-ca-cert=/etc/server-ca-pki/ca.crt", "--server-cert=/etc/server-pki/tls.crt", "--server-key=/etc/server-pki/tls.key",
			"--cluster-ca-cert=/etc/server-ca-pki/ca.crt", "--cluster-cert=/etc/agent-pki/tls.crt", "--cluster-key=/etc/agent-pki/tls.key",
			"--cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256", "--tls-min-version=VersionTLS12",
		},
		agent: []string{
			"--proxy-server-host=<server>", "--proxy-server-port=8091",
			"--agent-identifiers=host=cluster-49960de5880e8c687434170f6476605b8fe4aeb9a28632c7.open-cluster-management.proxy&host=localhost&host=localhost.open-cluster-management-cluster-proxy",
			"--ca-cert=/etc/ca/ca.crt", "--agent-cert=/etc/tls/tls.crt", "--agent-key=/etc/tls/tls.key",
		},
		host: "localhost",
	},
	// kubermatic/kubermatic 2974df5bdc.
	"Kubermatic": {
		source: "pkg/resources/konnectivity/sidecar.go (knpServerArgs), " +
			"pkg/controller/user-cluster-controller-manager/resources/resources/konnectivity/deployment.go (getArgs)",
		server: []string{
			"--logtostderr=true", "-v=3",
			"--cluster-key=/etc/kubernetes/pki/konnectivityproxy-tls.key", "--cluster-cert=/etc/kubernetes/pki/konnectivityproxy-tls.crt",
			"--uds-name=/etc/kubernetes/konnectivity-server/konnectivity-server.socket", "--kubeconfig=/etc/kubernetes/kubeconfig/kubeconfig",
			"--server-count=2", "--mode=grpc", "--server-port=0", "--agent-port=8132", "--admin-port=8133", "--admin-bind-address=0.0.0.0", "--health-port=8134",
			"--agent-namespace=kube-system", "--agent-service-account=system-konnectivity-agent", "--delete-existing-uds-file=true",
			"--authentication-audience=system:konnectivity-server", "--proxy-strategies=default", "--keepalive-time=1m", "--xfr-channel-size=150",
		},
		agent: []string{
			"--logtostderr=true", "-v=3", "--sync-forever=true", "--ca-cert=/var/run/secrets/kubernetes.io/serviceaccount/ca.crt",
			"--proxy-server-host=<server>", "--proxy-server-port=443", "--admin-server-port=8133", "--health-server-port=8134",
			"--service-account-token-path=/var/run/secrets/tokens/system-konnectivity-agent-token", "--keepalive-time=1m", "--xfr-channel-size=150",
		},
		account: "system-konnectivity-agent", host: "127.0.0.1",
	},
}

// Our programs, started with the command lines of other projects, carry what those
// send: kube-apiserver's gRPC over the unix socket, or OCM's over mTLS.
func TestRecipes(t *testing.T) {
	for name, r := range recipes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &whole{Suite: newSuite(t), target: newTarget(t)}
			by := w.follow(t, r)
			transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				return by.Dial(ctx, tunnel.NewFlow(network, address))
			}}
			_, port, _ := net.SplitHostPort(w.target.plain.Listener.Addr().String())
			const size = 300_000
			res, err := (&http.Client{Timeout: patience, Transport: transport}).
				Get(fmt.Sprintf("http://%s/4/%d", net.JoinHostPort(r.host, port), size))
			testutil.Requires(t, err == nil, "%v\nthe command lines are those of %s", err, r.source)
			defer res.Body.Close()
			testutil.Equal(t, must(hashOf(res.Body))(t), sum(4, size), "the hash of the body")
		})
	}
}

// follow starts server and agent by a recipe, and returns the way of its clients.
func (w *whole) follow(t *testing.T, r recipe) tunnel.Dialer {
	t.Helper()
	socket, token, ports := filepath.Join(w.Dir, "uds"), filepath.Join(w.Dir, "token"), must(w.Reserve(6))(t)
	api := newKubeAPI(t, w.Suite)
	api.allow("of-the-agent", identity{"system:serviceaccount:kube-system:" + r.account, "system:konnectivity-server"})
	testutil.NoError(t, os.WriteFile(token, []byte("of-the-agent"), 0o600))
	server := fit(t, r.server, map[string]string{
		"--server-port": strconv.Itoa(ports[0]), "--agent-port": strconv.Itoa(ports[1]),
		"--health-port": strconv.Itoa(ports[2]), "--admin-port": strconv.Itoa(ports[3]),
		"--server-ca-cert": w.PKI("ca.crt"), "--server-cert": w.PKI("server.crt"), "--server-key": w.PKI("server.key"),
		"--cluster-ca-cert": w.PKI("ca.crt"), "--cluster-cert": w.PKI("cluster.crt"), "--cluster-key": w.PKI("cluster.key"),
		"--kubeconfig": api.kubeconfig, "--uds-name": socket,
	})
	agent := fit(t, r.agent, map[string]string{
		"--proxy-server-host": "127.0.0.1", "--proxy-server-port": strconv.Itoa(ports[1]),
		"--health-server-port": strconv.Itoa(ports[4]), "--admin-server-port": strconv.Itoa(ports[5]),
		"--ca-cert": w.PKI("ca.crt"), "--agent-cert": w.PKI("agent.crt"), "--agent-key": w.PKI("agent.key"),
		"--service-account-token-path": token,
	})
	ready := func(p *suite.Process, port int, path string) {
		testutil.NoError(t, suite.WaitReady(p, "http://"+suite.Loopback(port)+path))
	}
	p := must(w.Run("konnectivity-server", nil, server...))(t)
	ready(p, ports[2], "/healthz")
	ready(p, ports[3], "/metrics") // which Kubermatic's Prometheus scrapes
	p = must(w.Run("konnectivity-agent", nil, agent...))(t)
	ready(p, ports[4], "/readyz")
	if r.account == "" {
		config := w.clientTLS(t)
		config.NextProtos = nil
		return overGRPC(suite.Loopback(ports[0]), credentials.NewTLS(config))
	}
	return viaGRPC(socket)
}

// fit replaces files, ports and hosts of a command line by those of this machine, and
// adds ports that it leaves to their defaults. A port 0 stays: nothing listens.
func fit(t *testing.T, args []string, here map[string]string) []string {
	t.Helper()
	fitted, given := slices.Clone(args), map[string]bool{}
	for i, arg := range args {
		flag, value, _ := strings.Cut(arg, "=")
		given[flag] = true
		if local, ok := here[flag]; ok && value != "0" {
			fitted[i] = flag + "=" + local
		} else if strings.HasPrefix(value, "/") {
			t.Fatalf("no file of this machine stands for %s", arg)
		}
	}
	for flag, local := range here {
		if strings.HasSuffix(flag, "-port") && !given[flag] {
			fitted = append(fitted, flag+"="+local)
		}
	}
	return fitted
}

// Open-Local's CSI driver reaches the gRPC daemon on each node by CONNECT over mTLS, or
// by gRPC over the server's socket (alibaba/open-local c0fbee4bf7,
// pkg/csi/client/konnectivity.go, docs/user-guide/apiserver-network-proxy.md).
func TestOpenLocal(t *testing.T) {
	w := newWhole(t)
	daemon, listener := grpc.NewServer(), must(net.Listen("tcp", "127.0.0.1:0"))(t)
	grpc_health_v1.RegisterHealthServer(daemon, health.NewServer())
	served := make(chan struct{})
	go func() { defer close(served); _ = daemon.Serve(listener) }()
	t.Cleanup(func() { daemon.Stop(); <-served })
	for mode, dial := range map[string]func(context.Context, string) (net.Conn, error){
		"http-connect": w.openLocalConnect(t),
		"grpc": func(ctx context.Context, address string) (net.Conn, error) {
			return viaGRPC(w.server.UDS).Dial(ctx, tunnel.NewFlow("tcp", address))
		},
	} {
		for range 20 {
			conn := must(grpc.NewClient("passthrough:///"+listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial)))(t)
			res, err := grpc_health_v1.NewHealthClient(conn).Check(within(t, patience), &grpc_health_v1.HealthCheckRequest{})
			testutil.Holds(t, err == nil && res.Status == grpc_health_v1.HealthCheckResponse_SERVING,
				"%s: %v, %v", mode, res, err)
			_ = conn.Close()
		}
	}
}

// openLocalConnect is getKonnectivityMTLSDialer there, whose Host is no host of ours
// and which takes no byte of the daemon together with the answer. (A gRPC server
// speaks first.)
func (w *whole) openLocalConnect(t *testing.T) func(context.Context, string) (net.Conn, error) {
	config := w.clientTLS(t)
	config.NextProtos = nil
	return func(_ context.Context, address string) (net.Conn, error) {
		c, err := tls.Dial("tcp", suite.Loopback(w.server.ClientPort), config)
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", address, "127.0.0.1")
		br := bufio.NewReader(c)
		res, err := http.ReadResponse(br, nil)
		if err != nil {
			return nil, err
		}
		if res.StatusCode != 200 || br.Buffered() > 0 {
			return nil, fmt.Errorf("status %s, and %d bytes behind the answer", res.Status, br.Buffered())
		}
		return c, nil
	}
}
