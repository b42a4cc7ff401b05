package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// proxyUserinfo is anna with the password s3cret@%: in a URL.
const proxyUserinfo = "anna:s3cret%40%25%3A@"

// squid is a customer's proxy: all four kinds in one process. What it fetches
// comes from the address source, which is how a target knows that it was it.
type squid struct {
	*suite.Process
	ip, source         string
	plain, plainAuth   int // ports
	secure, secureAuth int
	ca                 string // file
}

// newSquid starts one at ip that resolves names by hosts.
func newSquid(t *testing.T, ip string, hosts map[string]string) *squid {
	t.Helper()
	dir := openDir(t)
	q := &squid{ip: ip, source: loopbackIP(), ca: filepath.Join(dir, "ca.crt")}
	for _, port := range []*int{&q.plain, &q.plainAuth, &q.secure, &q.secureAuth} {
		*port = testutil.Reserved(t)
	}
	ca := must(pki.NewCA("customer CA"))(t)
	pair := must(ca.Issue(pki.Leaf{CommonName: "proxy", DNS: []string{"squid.guest.test"}, IPs: []net.IP{net.ParseIP(q.ip)}, Server: true}))(t)
	var table strings.Builder
	for name, ip := range hosts {
		fmt.Fprintln(&table, ip, name)
	}
	for name, text := range map[string]string{
		"squid.conf": fmt.Sprintf(squidConf, q.source, dir, q.ip, q.plain, q.plainAuth, q.secure, q.secureAuth),
		"hosts":      table.String(), "ca.crt": string(ca.CertPEM), "tls.crt": string(pair.CertPEM), "tls.key": string(pair.KeyPEM),
		"auth": "while read -r user password; do [ \"$user $password\" = 'anna s3cret@%25:' ] && echo OK || echo ERR; done\n",
	} {
		testutil.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	q.Process = external(t, "squid", "-N", "-d", "1", "-f", filepath.Join(dir, "squid.conf"))
	last := net.JoinHostPort(q.ip, fmt.Sprint(q.secureAuth)) // in its configuration
	testutil.NoError(t, suite.WaitListening(q.Process, "tcp", last))
	return q
}

const squidConf = `
tcp_outgoing_address %[1]s
hosts_file %[2]s/hosts
dns_nameservers %[3]s
pid_filename none
cache deny all
access_log none
cache_log %[2]s/cache.log
coredump_dir %[2]s
netdb_filename none
pinger_enable off
shutdown_lifetime 0 seconds
visible_hostname squid.guest.test
http_port %[3]s:%[4]d name=open1
http_port %[3]s:%[5]d name=auth1
https_port %[3]s:%[6]d name=open2 tls-cert=%[2]s/tls.crt tls-key=%[2]s/tls.key
https_port %[3]s:%[7]d name=auth2 tls-cert=%[2]s/tls.crt tls-key=%[2]s/tls.key
auth_param basic program /bin/sh %[2]s/auth
auth_param basic children 1 startup=1
acl open myportname open1 open2
acl users proxy_auth REQUIRED
http_access allow open
http_access allow users
http_access deny all
`

// newSourceSite answers at ip with the address that asks.
func newSourceSite(t *testing.T, ip string) (port string) {
	t.Helper()
	return siteAt(t, ip, nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		source, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(w, source)
	}))
}

// customerWorld has a hosted cluster with a customer's squid and a site in it.
type customerWorld struct {
	*tunnelOf
	env   []string
	squid *squid
	site  string // its port
}

func newCustomerWorld(t *testing.T) *customerWorld {
	t.Helper()
	ip := loopbackIP()
	h := newHostedCluster(t, "--host-record=squid.guest.test,"+ip)
	return &customerWorld{newTunnel(t), []string{"KUBECONFIG=" + h.kubeconfig}, newSquid(t, ip, map[string]string{"app.guest.test": h.ip}), newSourceSite(t, h.ip)}
}

// What no-proxy does not have goes by the customer's proxy, with TLS or without and
// with a password or without; what it has goes through the tunnel, as all does where
// there is no such proxy.
func TestSidecarCustomerProxy(t *testing.T) {
	t.Parallel()
	w := newCustomerWorld(t)
	byName := func(port int) string { return fmt.Sprint("squid.guest.test:", port) }
	for name, c := range map[string]struct {
		proxy, noProxy string
		byProxy        bool
	}{
		"plain":              {"http://" + byName(w.squid.plain), "other.test", true},
		"Basic, no scheme":   {proxyUserinfo + byName(w.squid.plainAuth), "", true},
		"TLS":                {"https://" + byName(w.squid.secure), "", true},
		"TLS, Basic":         {"https://" + proxyUserinfo + byName(w.squid.secureAuth), "", true},
		"TLS, by an address": {"https://" + net.JoinHostPort(w.squid.ip, fmt.Sprint(w.squid.secure)), "", true},
		"exempt":             {"http://" + byName(w.squid.plain), ".guest.test", false},
		"no proxy":           {"", "", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.sidecar(t, "konnectivity-https-proxy", w.env, "--http-proxy="+c.proxy, "--https-proxy="+c.proxy,
				"--no-proxy="+c.noProxy, "--proxy-ca-cert-path="+w.squid.ca)
			for _, method := range []string{"GET", "CONNECT"} {
				var source string
				var err error
				for range 4 { // the DNS has 2 s to answer, which on a busy machine it may not
					if source, err = ask(s, method, "app.guest.test:"+w.site); err == nil || !strings.Contains(err.Error(), "DNS") {
						break
					}
				}
				testutil.Holds(t, err == nil && (source == w.squid.source) == c.byProxy,
					"%s: came from %q, %v; by the proxy: want %v", method, source, err, c.byProxy)
			}
			route := map[bool]string{true: "customer_proxy", false: "tunnel"}[c.byProxy]
			testutil.AtLeast(t, s.dials(t, route), 1, "dials by route %s", route)
		})
	}
}

// ask is one request by the sidecar.
func ask(s *observed, method, address string) (string, error) {
	if method == "GET" {
		return getBy("http://"+s.Address(), "http://"+address+"/")
	}
	c, err := net.Dial("tcp", s.Address())
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	if err := connect(c, address); err != nil {
		return "", err
	}
	fmt.Fprintf(c, "GET / HTTP/1.0\r\nHost: %s\r\n\r\n", address)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return "", err
	}
	return readAnswer(res)
}

// getBy is the answer to a GET by a proxy.
func getBy(proxy, url string) (string, error) {
	res, err := clientBy(proxy).Get(url)
	if err != nil {
		return "", err
	}
	return readAnswer(res)
}

func readAnswer(res *http.Response) (string, error) {
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = &statusError{res.StatusCode, string(body)}
	}
	return strings.TrimSpace(string(body)), err
}

// tinyproxy is another proxy that customers have, here with Basic and in front
// of another one, which knows the names.
func TestSidecarCustomerTinyproxy(t *testing.T) {
	t.Parallel() // it waits
	w := newCustomerWorld(t)
	port := testutil.Reserved(t)
	conf := fmt.Sprintf("Port %d\nListen %s\nTimeout 30\nMaxClients 20\nBasicAuth anna secret\nUpstream http %s:%d\n",
		port, w.squid.ip, w.squid.ip, w.squid.plain)
	file := filepath.Join(openDir(t), "tinyproxy.conf")
	testutil.NoError(t, os.WriteFile(file, []byte(conf), 0o644))
	p := external(t, "tinyproxy", "-d", "-c", file)
	address := net.JoinHostPort(w.squid.ip, fmt.Sprint(port))
	testutil.NoError(t, suite.WaitListening(p, "tcp", address))
	u := "http://anna:secret@" + address
	s := w.sidecar(t, "konnectivity-https-proxy", w.env, "--http-proxy="+u, "--https-proxy="+u)
	for _, args := range [][]string{{}, {"--http1.0"}, {"--proxytunnel"}, {"--proxytunnel", "--http1.0"}} {
		args = append(append([]string{"--proxy", "http://" + s.Address()}, args...), "http://app.guest.test:"+w.site)
		testutil.Equal(t, string(must(curl(t, args...))(t)), w.squid.source, "curl %q: from", args)
	}
	testutil.AtLeast(t, s.dials(t, "customer_proxy"), 3, "dials by tinyproxy") // the two plain requests may share one
}
