package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"golang.org/x/net/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// deployment is a control plane with its hosted cluster, as HyperShift makes
// them: docs/sidecars.md has the sidecars' arguments and environments ("As
// HyperShift deploys them").
type deployment struct {
	*tunnelOf
	hosted *hostedCluster
	env    []string // of every sidecar
	web    *hostedWeb
}

func newDeployment(t *testing.T, records ...string) *deployment {
	t.Helper()
	d := &deployment{tunnelOf: newTunnel(t), hosted: newHostedCluster(t, records...)}
	d.env = []string{"KUBECONFIG=" + d.hosted.kubeconfig}
	d.web = newHostedWeb(t, d.hosted.ip)
	return d
}

// hostedWeb answers "hello" in the hosted cluster, plain and with TLS. No name
// of it is known on this side.
type hostedWeb struct {
	plain, secure string // ports
	ca            string // file
}

func newHostedWeb(t *testing.T, ip string) *hostedWeb {
	t.Helper()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "hello "+r.URL.Path) })
	ca := must(pki.NewCA("hosted web"))(t)
	pair := must(ca.Issue(pki.Leaf{CommonName: "web", Server: true, IPs: []net.IP{net.ParseIP(ip)},
		DNS: []string{"app.guest.test", "web.apps.svc", "web.apps.svc.cluster.local", "ec2.us-east-1.amazonaws.com"}}))(t)
	w := &hostedWeb{plain: siteAt(t, ip, nil, handler), secure: siteAt(t, ip, serverTLS(pair), handler), ca: filepath.Join(openDir(t), "ca.crt")}
	testutil.NoError(t, os.WriteFile(w.ca, ca.CertPEM, 0o644))
	return w
}

// siteAt serves at ip, with TLS if config is given, until the test ends.
func siteAt(t *testing.T, ip string, config *tls.Config, handler http.Handler) (port string) {
	t.Helper()
	s := httptest.NewUnstartedServer(handler)
	_ = s.Listener.Close()
	s.Listener = must(net.Listen("tcp", ip+":0"))(t)
	_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
	if config == nil {
		s.Start()
	} else {
		s.TLS = config
		s.StartTLS()
	}
	t.Cleanup(func() { s.CloseClientConnections(); s.Close() })
	return port
}

// fetch is curl with a pod's environment: nothing of ours on its command line.
func fetch(t *testing.T, ca string, env []string, url string) (string, error) {
	t.Helper()
	return command(t, env, "curl", "--silent", "--show-error", "--fail", "--max-time", "60", "--cacert", ca, url)
}

func wantHello(t *testing.T, what, got string) {
	t.Helper()
	testutil.Equal(t, got, "hello /"+what, "the answer")
}

// proxied is the environment of a container that uses a sidecar.
func proxied(socks, web *observed) []string {
	env := []string{"NO_PROXY=kube-apiserver,etcd-client,audit-webhook"}
	if web != nil {
		env = append(env, "http_proxy=http://"+web.Address(), "HTTP_PROXY=http://"+web.Address(), "HTTPS_PROXY=http://"+web.Address())
	}
	if socks != nil {
		env = append(env, "ALL_PROXY=socks5h://"+socks.Address()) // Go's socks5 is what curl calls socks5h
	}
	return env
}

func TestSidecarForOpenshiftAPIServer(t *testing.T) {
	d := newDeployment(t)
	d.hosted.api.set("apps", "web", d.hosted.ip)
	s := d.sidecar(t, "konnectivity-https-proxy", d.env)
	for _, host := range []string{"web.apps.svc", "web.apps.svc.cluster.local", "app.guest.test"} {
		wantHello(t, host, must(fetch(t, d.web.ca, proxied(nil, s), "https://"+host+":"+d.web.secure+"/"+host))(t))
		wantHello(t, host, must(fetch(t, d.web.ca, proxied(nil, s), "http://"+host+":"+d.web.plain+"/"+host))(t))
	}
	testutil.AtLeast(t, s.dials(t, "tunnel"), 6, "dials through the tunnel")
}

// The bypass and the pod's own proxy: cloud APIs go by HTTPS_PROXY unless
// NO_PROXY has them, all else by the tunnel.
func TestSidecarsForOAuthOpenshift(t *testing.T) {
	t.Parallel() // it waits
	d := newDeployment(t)
	cloud := newSourceSite(t, d.hosted.ip)
	pod := newSquid(t, loopbackIP(), map[string]string{"login.microsoftonline.com": d.hosted.ip, "sts.no-proxy.invalid": d.hosted.ip})
	env := append([]string{fmt.Sprintf("HTTPS_PROXY=http://%s:%d", pod.ip, pod.plain), "NO_PROXY=.no-proxy.invalid"}, d.env...)
	web := d.sidecar(t, "konnectivity-https-proxy", env, "--connect-directly-to-cloud-apis=true", "--direct-suffix=no-proxy.invalid")
	socks := d.sidecar(t, "konnectivity-socks5-proxy", env, "--resolve-from-guest-cluster-dns=true", "--resolve-from-management-cluster-dns=true")

	wantHello(t, "idp", must(fetch(t, d.web.ca, proxied(socks, web), "https://app.guest.test:"+d.web.secure+"/idp"))(t))
	wantHello(t, "ldap", must(fetch(t, d.web.ca, proxied(socks, nil), "https://app.guest.test:"+d.web.secure+"/ldap"))(t))
	testutil.Equal(t, socks.dials(t, "tunnel"), 1, "dials of the SOCKS5 sidecar through the tunnel")
	got, err := command(t, nil, "curl", "-sS", "--max-time", "60", "--proxytunnel", "--proxy", "http://"+web.Address(), "http://login.microsoftonline.com:"+cloud)
	if err != nil || got != pod.source || web.dials(t, "direct") != 1 {
		t.Errorf("a cloud API: from %q, %v, %v direct dials; want by the pod's proxy", got, err, web.dials(t, "direct"))
	}
	err = try(t, viaConnect("tcp", web.Address(), nil), "sts.no-proxy.invalid:"+cloud)
	// Where this machine has no DNS at all, it cannot know either, or waits for it.
	testutil.Holds(t, err != nil && regexp.MustCompile(`No such host|could not be looked up|status 504`).MatchString(err.Error()),
		"a name that NO_PROXY keeps from the pod's proxy, and that nobody knows here: %v", err)
	d.searchLDAP(t, socks)
}

// Without a resolver the agent knows names, and nobody else is asked.
func TestSidecarForNetworkOperator(t *testing.T) {
	d := newDeployment(t)
	s := d.sidecar(t, "konnectivity-socks5-proxy", d.env, "--disable-resolver=true")
	tg := newTarget(t)
	_, port, _ := net.SplitHostPort(tg.plain.Listener.Addr().String())
	testutil.Succeeds(t, testutil.Err(fetch(t, d.web.ca, proxied(s, nil), "http://localhost:"+port+"/1/1000")),
		"a name that the agent knows")
	testutil.Fails(t, testutil.Err(fetch(t, d.web.ca, proxied(s, nil), "http://app.guest.test:"+d.web.plain+"/")),
		"a name that the agent cannot know")
	d.hosted.api.mu.Lock()
	defer d.hosted.api.mu.Unlock()
	testutil.Equal(t, d.hosted.api.asked, 0, "Services that the API was asked for")
}

// OLM dials catalogs by GRPC_PROXY, with golang.org/x/net/proxy.
func TestSidecarForOLM(t *testing.T) {
	d := newDeployment(t)
	d.hosted.api.set("openshift-marketplace", "redhat-operators", d.hosted.ip)
	l := must(net.Listen("tcp", d.hosted.ip+":0"))(t)
	catalog := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(catalog, health.NewServer())
	done := make(chan struct{})
	go func() { defer close(done); _ = catalog.Serve(l) }()
	t.Cleanup(func() { catalog.Stop(); <-done })

	s := d.sidecar(t, "konnectivity-socks5-proxy", d.env)
	grpcProxy := must(url.Parse("socks5://" + s.Address()))(t)
	dialer := must(proxy.FromURL(grpcProxy, proxy.Direct))(t)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	conn := must(grpc.NewClient("passthrough:///redhat-operators.openshift-marketplace.svc:"+port,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dialer.(proxy.ContextDialer).DialContext(ctx, "tcp", address)
		})))(t)
	defer conn.Close()
	ctx := within(t, patience)
	for range 100 {
		res, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
		testutil.Requires(t, err == nil && res.Status == grpc_health_v1.HealthCheckResponse_SERVING,
			"%v, %v", res, err)
	}
	stream := must(grpc_health_v1.NewHealthClient(conn).Watch(ctx, &grpc_health_v1.HealthCheckRequest{}))(t)
	if res, err := stream.Recv(); err != nil || res.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("a stream's first message: %v, %v", res, err)
	}
}
