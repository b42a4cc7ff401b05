package apiserver

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// serviceRange is what cluster IPs are from: addresses that this machine has,
// so that what listens on one is what kube-proxy would have led to.
const serviceRange = "127.96.0.0/16"

// controlPlane is an etcd and kube-apiservers, and nothing that controls: no
// scheduler, no controller manager.
type controlPlane struct {
	t          *testing.T // the part of the test that runs
	whole      *testing.T // the test that all of it ends with
	suite      *suite.Suite
	ca         *pki.CA // of everything but aggregation
	front      *pki.CA // of kube-apiserver as a client of aggregated APIs
	etcd       string  // URL
	apis       []*kubeAPI
	kubeconfig string   // an administrator's, at the first kube-apiserver
	env        []string // of kubectl
	admin      *tls.Config
}

// kubeAPI is a kube-apiserver.
type kubeAPI struct {
	*suite.Process
	port int
	args []string
}

// newControlPlane starts etcd; kube-apiservers come by addAPI.
func newControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	p := &controlPlane{t: t, whole: t, suite: suite.ForTest(t, binaries)}
	p.ca, p.front = must(pki.NewCA("cluster"))(t), must(pki.NewCA("front proxy"))(t)
	p.writePKI()
	p.startEtcd()
	return p
}

// file is the path of one in the scratch folder.
func (p *controlPlane) file(name string) string { return filepath.Join(p.suite.Dir, name) }

// write makes a file and returns its path.
func (p *controlPlane) write(name string, data []byte) string {
	p.t.Helper()
	testutil.NoError(p.t, os.WriteFile(p.file(name), data, 0o600))
	return p.file(name)
}

// issue writes NAME.crt and NAME.key.
func (p *controlPlane) issue(ca *pki.CA, name string, leaf pki.Leaf) pki.Pair {
	p.t.Helper()
	pair := must(ca.Issue(leaf))(p.t)
	p.write(name+".crt", pair.CertPEM)
	p.write(name+".key", pair.KeyPEM)
	return pair
}

func (p *controlPlane) writePKI() {
	loopback := []net.IP{net.IPv4(127, 0, 0, 1)}
	p.write("ca.crt", p.ca.CertPEM)
	p.write("front-ca.crt", p.front.CertPEM)
	p.issue(p.ca, "apiserver", pki.Leaf{CommonName: "kube-apiserver", IPs: loopback, Server: true})
	p.issue(p.ca, "service-accounts", pki.Leaf{CommonName: "service-accounts"})
	p.issue(p.ca, "kubelet-client", pki.Leaf{CommonName: "kube-apiserver-kubelet-client", Client: true})
	p.issue(p.front, "front", pki.Leaf{CommonName: "front-proxy-client", Client: true})
	admin := p.issue(p.ca, "admin", pki.Leaf{CommonName: "admin", Organization: "system:masters", Client: true})
	p.admin = &tls.Config{RootCAs: p.ca.Pool(), Certificates: []tls.Certificate{admin.TLS()}}
}

// start runs a program that is not the suite's, until the test ends.
func (p *controlPlane) start(name string, args ...string) *suite.Process {
	p.t.Helper()
	process := must(suite.Start(name, program(name), args, nil))(p.t)
	p.whole.Cleanup(func() {
		process.Kill()
		if p.whole.Failed() {
			p.whole.Logf("--- %s\n%s", name, lastBytes(process.Output(), 20_000))
		}
	})
	return process
}

func (p *controlPlane) startEtcd() {
	p.t.Helper()
	port := testutil.Reserved(p.t)
	p.etcd = "http://" + suite.Loopback(port)
	etcd := p.start("etcd", "--data-dir="+p.file("etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+p.etcd, "--advertise-client-urls="+p.etcd, "--listen-peer-urls=http://127.0.0.1:0")
	testutil.NoError(p.t, suite.WaitReady(etcd, p.etcd+"/health"))
}

// addAPI starts a kube-apiserver with an egress selector configuration.
func (p *controlPlane) addAPI(egress string) *kubeAPI {
	p.t.Helper()
	a := p.newAPI(egress)
	p.runAPI(a)
	return a
}

// newAPI is a kube-apiserver that has yet to be started.
func (p *controlPlane) newAPI(egress string) *kubeAPI {
	p.t.Helper()
	a := &kubeAPI{port: testutil.Reserved(p.t)}
	name := "egress-" + strconv.Itoa(len(p.apis)) + ".yaml"
	a.args = []string{
		"--etcd-servers=" + p.etcd, "--secure-port=" + strconv.Itoa(a.port), "--bind-address=127.0.0.1",
		// Nobody goes by the Service "kubernetes".
		"--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none", "--service-cluster-ip-range=" + serviceRange,
		"--tls-cert-file=" + p.file("apiserver.crt"), "--tls-private-key-file=" + p.file("apiserver.key"), "--client-ca-file=" + p.file("ca.crt"),
		"--authorization-mode=Node,RBAC", "--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.file("service-accounts.crt"), "--service-account-signing-key-file=" + p.file("service-accounts.key"),
		"--kubelet-certificate-authority=" + p.file("ca.crt"), "--kubelet-preferred-address-types=InternalIP",
		"--kubelet-client-certificate=" + p.file("kubelet-client.crt"), "--kubelet-client-key=" + p.file("kubelet-client.key"),
		"--proxy-client-cert-file=" + p.file("front.crt"), "--proxy-client-key-file=" + p.file("front.key"),
		"--requestheader-client-ca-file=" + p.file("front-ca.crt"), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--egress-selector-config-file=" + p.write(name, []byte(egress)),
	}
	if p.apis = append(p.apis, a); len(p.apis) == 1 {
		p.kubeconfig = p.userConfig("admin", a.port, "client-certificate: "+p.file("admin.crt")+", client-key: "+p.file("admin.key"))
	}
	return a
}

// runAPI starts a (again) and waits until it is ready.
func (p *controlPlane) runAPI(a *kubeAPI) {
	p.t.Helper()
	a.Process = p.start("kube-apiserver", a.args...)
	wait(p.t, "kube-apiserver is ready", func() bool {
		select {
		case <-a.Done():
			p.t.Fatalf("kube-apiserver ended:\n%s", lastBytes(a.Output(), 20_000))
		default:
		}
		return p.ready(a)
	})
}

// ready is what a load balancer before kube-apiservers asks.
func (p *controlPlane) ready(a *kubeAPI) bool {
	return answers(p.client(), "https://"+suite.Loopback(a.port)+"/readyz")
}

// client is an administrator who, as kubectl does at each start, connects anew.
func (p *controlPlane) client() *http.Client {
	return &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: p.admin.Clone(), DisableKeepAlives: true}}
}

// userConfig writes a kubeconfig file with the given credentials.
func (p *controlPlane) userConfig(name string, port int, credentials string) string {
	p.t.Helper()
	return p.write(name+".kubeconfig", fmt.Appendf(nil, "apiVersion: v1\nkind: Config\ncurrent-context: c\n"+
		"clusters: [{name: c, cluster: {server: 'https://%s', certificate-authority: %s}}]\n"+
		"contexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {%s}}]\n",
		suite.Loopback(port), p.file("ca.crt"), credentials))
}

// clientOf writes the kubeconfig of a user with a client certificate, as `kubeadm
// kubeconfig user` makes it.
func (p *controlPlane) clientOf(user string, port int) string {
	p.t.Helper()
	name := fmt.Sprintf("%s-%d", strings.ReplaceAll(user, ":", "-"), port)
	p.issue(p.ca, name, pki.Leaf{CommonName: user, Client: true})
	return p.userConfig(name, port, "client-certificate: "+p.file(name+".crt")+", client-key: "+p.file(name+".key"))
}
