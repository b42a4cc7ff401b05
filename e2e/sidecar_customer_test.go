package e2e

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

const (
	proxyUser     = "anna"
	proxyPassword = "s3cret@%:" // needs escaping in a URL
	proxyUserinfo = "anna:s3cret%40%25%3A@"
)

// squid is a customer's proxy: all four kinds in one process. What it fetches
// comes from the address source, which is how a target knows that it was it.
type squid struct {
	*suite.Process
	ip, source         string
	plain, plainAuth   int // ports, on ip and on ::1
	secure, secureAuth int
	ca                 string // file
}

// haveIPv6 says whether this machine has it, at least on loopback.
func haveIPv6() bool {
	l, err := net.Listen("tcp", "[::1]:0")
	if err == nil {
		_ = l.Close()
	}
	return err == nil
}

// newSquid starts one that resolves names by hosts. Destinations in the
// documentation ranges (RFC 5737, RFC 3849), which are nowhere, it finds at
// site.
func newSquid(t *testing.T, site string, hosts map[string]string) *squid {
	t.Helper()
	dir := openDir(t)
	q := &squid{ip: loopbackIP(), source: loopbackIP(), ca: filepath.Join(dir, "ca.crt")}
	for _, port := range []*int{&q.plain, &q.plainAuth, &q.secure, &q.secureAuth} {
		*port = testutil.Reserved(t)
	}
	ca := must(pki.NewCA("customer CA"))(t)
	pair := must(ca.Issue(pki.Leaf{CommonName: "proxy", DNS: []string{"squid.guest.test"}, IPs: []net.IP{net.ParseIP(q.ip), net.IPv6loopback}, Server: true}))(t)
	var table strings.Builder
	for name, ip := range hosts {
		fmt.Fprintln(&table, ip, name)
	}
	host, port, _ := net.SplitHostPort(site)
	conf := fmt.Sprintf(squidConf, q.source, dir, q.ip, q.plain, q.plainAuth, q.secure, q.secureAuth, host, port)
	if !haveIPv6() {
		conf = regexp.MustCompile(`(?m)^.*::1\b.*\n`).ReplaceAllString(conf, "")
	}
	for name, text := range map[string]string{
		"squid.conf": conf, "hosts": table.String(), "ca.crt": string(ca.CertPEM), "tls.crt": string(pair.CertPEM), "tls.key": string(pair.KeyPEM),
		"auth": "while read -r user password; do [ \"$user $password\" = 'anna s3cret@%25:' ] && echo OK || echo ERR; done\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	q.Process = external(t, "squid", "-N", "-d", "1", "-f", filepath.Join(dir, "squid.conf"))
	last := net.JoinHostPort(q.ip, fmt.Sprint(q.secureAuth)) // in its configuration
	if haveIPv6() {
		last = net.JoinHostPort("::1", fmt.Sprint(q.secureAuth))
	}
	if err := suite.WaitListening(q.Process, "tcp", last); err != nil {
		t.Fatal(err)
	}
	return q
}

const squidConf = `
tcp_outgoing_address %[1]s
tcp_outgoing_address ::1
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
http_port [::1]:%[4]d name=open2
http_port %[3]s:%[5]d name=auth1
http_port [::1]:%[5]d name=auth2
https_port %[3]s:%[6]d name=open3 tls-cert=%[2]s/tls.crt tls-key=%[2]s/tls.key
https_port [::1]:%[6]d name=open4 tls-cert=%[2]s/tls.crt tls-key=%[2]s/tls.key
https_port %[3]s:%[7]d name=auth3 tls-cert=%[2]s/tls.crt tls-key=%[2]s/tls.key
https_port [::1]:%[7]d name=auth4 tls-cert=%[2]s/tls.crt tls-key=%[2]s/tls.key
auth_param basic program /bin/sh %[2]s/auth
auth_param basic children 1 startup=1
acl open myportname open1 open2 open3 open4
acl users proxy_auth REQUIRED
http_access allow open
http_access allow users
http_access deny all
acl documentation dst 192.0.2.0/24 2001:db8::/32
cache_peer %[8]s parent %[9]s 0 originserver no-query no-digest name=site
cache_peer_access site allow documentation
cache_peer_access site deny all
never_direct allow documentation
always_direct deny documentation
always_direct allow all
`

// sourceSite answers with the address that asks, at a fixed set of addresses.
type sourceSite struct{ port, otherPort string }

func newSourceSite(t *testing.T, ip string) *sourceSite {
	t.Helper()
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		source, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(w, source)
	})
	serve := func(address string) (port string) {
		s := httptest.NewUnstartedServer(handler)
		_ = s.Listener.Close()
		s.Listener = must(net.Listen("tcp", address))(t)
		s.Start()
		t.Cleanup(s.Close)
		_, port, _ = net.SplitHostPort(s.Listener.Addr().String())
		return port
	}
	return &sourceSite{serve(ip + ":0"), serve(ip + ":0")}
}

// customerWorld has a hosted cluster with a customer's squid and a site in it.
type customerWorld struct {
	*tunnelOf
	hosted *hostedCluster
	squid  *squid
	site   *sourceSite
}

// noProxyList has one entry of every kind but *.
func (w *customerWorld) noProxyList() string {
	return ".suffix.test, exact.test,198.51.100.0/24,port.test:" + w.site.port + " dot.test,dotted.test."
}

func newCustomerWorld(t *testing.T) *customerWorld {
	t.Helper()
	// What goes straight to 198.51.100.0/24 must get no further than the agent.
	w := &customerWorld{tunnelOf: newTunnel(t, "--deny-destination=198.51.100.0/24")}
	names := []string{"app.guest.test", "in.suffix.test", "suffix.test", "exact.test", "port.test", "dot.test", "dotted.test"}
	h := &hostedCluster{dir: openDir(t), ip: loopbackIP()}
	h.kubeconfig = filepath.Join(h.dir, "kubeconfig")
	h.api = startAPI(t, loopbackIP()+":0")
	h.api.set("openshift-dns", "dns-default", h.ip)
	h.api.writeKubeconfig(t, h.kubeconfig)
	w.hosted = h
	w.site = newSourceSite(t, h.ip)
	hosts := map[string]string{}
	for _, name := range names {
		hosts[name] = h.ip
	}
	w.squid = newSquid(t, net.JoinHostPort(h.ip, w.site.port), hosts)
	records := []string{"--host-record=squid.guest.test," + w.squid.ip, "--local=/test/"}
	for _, name := range names[1:] {
		records = append(records, "--host-record="+name+","+h.ip)
	}
	h.startDNS(t, records...)
	return w
}

// proxyKind is one spelling of the customer's proxy.
type proxyKind struct {
	tls, auth bool
	host      string
}

func (w *customerWorld) proxyURL(k proxyKind) string {
	port := map[proxyKind]int{{tls: false}: w.squid.plain, {auth: true}: w.squid.plainAuth,
		{tls: true}: w.squid.secure, {tls: true, auth: true}: w.squid.secureAuth}[proxyKind{tls: k.tls, auth: k.auth}]
	text := net.JoinHostPort(k.host, fmt.Sprint(port))
	if k.auth {
		text = proxyUserinfo + text
	}
	switch {
	case k.tls:
		return "https://" + text
	case k.auth: // scheme-less URLs are http
		return text
	default:
		return "http://" + text
	}
}

// destination is where a request goes and whether no-proxy exempts it.
type destination struct {
	host, port string
	exempt     bool
	denied     bool // by the agent: nobody is there
}

func (w *customerWorld) destinations() []destination {
	p := w.site.port
	all := []destination{
		{host: "app.guest.test", port: p},
		{host: "192.0.2.7", port: p},
		{host: "suffix.test", port: p}, // ".suffix.test" is for names under it
		{host: "in.suffix.test", port: p, exempt: true},
		{host: "EXACT.test", port: p, exempt: true},
		{host: "198.51.100.7", port: p, exempt: true, denied: true},
		{host: "port.test", port: p, exempt: true},
		{host: "port.test", port: w.site.otherPort},
		{host: "dot.test.", port: p, exempt: true},
		{host: "dotted.test", port: p, exempt: true},
	}
	if haveIPv6() {
		all = append(all, destination{host: "2001:db8::7", port: p})
	}
	return all
}

// The whole matrix: which of the two proxies is given, how it is spoken
// to, how it is written, what no-proxy has, and what kind of destination it is;
// each by a plain request and by CONNECT.
func TestSidecarCustomerProxyMatrix(t *testing.T) {
	t.Parallel()
	w := newCustomerWorld(t)
	for i, given := range []string{"http", "https", "both"} {
		for j, k := range []proxyKind{{}, {auth: true}, {tls: true}, {tls: true, auth: true}} {
			k.host = []string{w.squid.ip, "::1", "squid.guest.test"}[(i+j)%3]
			if k.host == "::1" && !haveIPv6() {
				k.host = w.squid.ip
			}
			t.Run(fmt.Sprintf("%s, TLS %v, Basic %v, %s", given, k.tls, k.auth, k.host), func(t *testing.T) {
				args := []string{"--no-proxy=" + w.noProxyList(), "--proxy-ca-cert-path=" + w.squid.ca}
				if given != "https" {
					args = append(args, "--http-proxy="+w.proxyURL(k))
				}
				if given != "http" {
					args = append(args, "--https-proxy="+w.proxyURL(k))
				}
				w.checkRoutes(t, args, w.destinations(), given != "https", given != "http")
			})
		}
	}
	tunneled := w.destinations()[:1]
	t.Run("neither", func(t *testing.T) { w.checkRoutes(t, nil, tunneled, false, false) })
	t.Run("no-proxy *", func(t *testing.T) {
		k := w.proxyURL(proxyKind{host: w.squid.ip})
		w.checkRoutes(t, []string{"--http-proxy=" + k, "--https-proxy=" + k, "--no-proxy=*"}, tunneled, false, false)
	})
}

// checkRoutes runs a sidecar and looks where each destination's requests go:
// plain ones by the proxy if byHTTP, CONNECT if byHTTPS, unless exempt.
func (w *customerWorld) checkRoutes(t *testing.T, args []string, to []destination, byHTTP, byHTTPS bool) {
	t.Helper()
	s := w.sidecar(t, "konnectivity-https-proxy", []string{"KUBECONFIG=" + w.hosted.kubeconfig}, args...)
	defer s.Kill()
	for _, d := range to {
		for _, method := range []string{"GET", "CONNECT"} {
			route := "tunnel"
			if !d.exempt && (method == "GET" && byHTTP || method == "CONNECT" && byHTTPS) {
				route = "customer_proxy"
			}
			if route == "tunnel" && (strings.HasPrefix(d.host, "192.0.2.") || strings.HasPrefix(d.host, "2001:")) {
				continue // only squid knows where that is
			}
			before := s.dials(t, route)
			out, err := w.ask(s, method, net.JoinHostPort(d.host, d.port))
			for range 3 { // the DNS has 2 s to answer, which on a busy machine it may not
				if err == nil || !strings.Contains(err.Error(), "DNS") {
					break
				}
				out, err = w.ask(s, method, net.JoinHostPort(d.host, d.port))
			}
			switch source := w.squid.source; {
			case d.denied:
				if err == nil || !strings.Contains(err.Error(), "403") {
					t.Errorf("%s %s: %q, %v; want the agent's refusal", method, d.host, out, err)
				}
			case err != nil, (out == source) != (route == "customer_proxy"):
				t.Errorf("%s %s: came from %q, %v; want route %s", method, d.host, out, err, route)
			}
			if after := s.dials(t, route); after == before && method == "CONNECT" {
				t.Errorf("%s %s: no dial by route %s was counted", method, d.host, route)
			}
		}
	}
}

// ask is one request by the sidecar.
func (w *customerWorld) ask(s *observed, method, address string) (string, error) {
	if method == "GET" {
		res, err := clientBy("http://" + s.Address()).Get("http://" + address + "/")
		if err != nil {
			return "", err
		}
		return readAnswer(res)
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
	res, err := http.ReadResponse(bufioReader(c), nil)
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

// What goes wrong between us and the customer's proxy is told as such, with a
// status by its kind, and without the password.
func TestSidecarCustomerProxyFailures(t *testing.T) {
	t.Parallel() // it waits for silent proxies
	w := newCustomerWorld(t)
	nobody := net.JoinHostPort(w.squid.ip, fmt.Sprint(testutil.Reserved(t)))
	auth := net.JoinHostPort(w.squid.ip, fmt.Sprint(w.squid.plainAuth))
	for name, c := range map[string]struct {
		proxy  string
		status int
		body   string
	}{
		"no password":    {"http://" + auth, 502, "customer proxy wants authentication"},
		"wrong password": {"http://anna:wr0ng@" + auth, 502, "customer proxy wants authentication"},
		"untrusted CA":   {"https://" + net.JoinHostPort(w.squid.ip, fmt.Sprint(w.squid.secure)), 503, "not trusted"},
		"nobody there":   {"http://anna:wr0ng@" + nobody, 502, "refused"},
		"unknown name":   {"http://no-such-proxy.guest.test:3128", 502, "no such host"},
		"TLS to plain":   {"https://" + net.JoinHostPort(w.squid.ip, fmt.Sprint(w.squid.plain)), 503, "customer proxy"},
		"plain to TLS":   {"http://" + net.JoinHostPort(w.squid.ip, fmt.Sprint(w.squid.secure)), 503, "customer proxy"},
		"sends HTML":     {"http://" + fakeProxy(t, func(c *net.TCPConn) { fmt.Fprint(c, "<html><body>Sign in to the network</body></html>\r\n\r\n") }), 503, "does not speak http"},
		"10 MB headers":  {"http://" + fakeProxy(t, manyHeaders), 503, "customer proxy"},
		"hangs up":       {"http://" + fakeProxy(t, func(*net.TCPConn) {}), 503, "hung up"},
		"drips":          {"http://" + fakeProxy(t, drip), 504, "in time"},
		"silent":         {"http://" + fakeProxy(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) }), 504, "in time"},
		"status 999":     {"http://" + fakeProxy(t, func(c *net.TCPConn) { fmt.Fprint(c, "HTTP/1.1 999 So\r\n\r\n") }), 503, "customer proxy"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := w.sidecar(t, "konnectivity-https-proxy", []string{"KUBECONFIG=" + w.hosted.kubeconfig}, "--https-proxy="+c.proxy, "--http-proxy="+c.proxy)
			defer s.Kill()
			took := stopwatch(w.Suite)
			_, err := w.ask(s, "CONNECT", "app.guest.test:"+w.site.port)
			status, ok := err.(*statusError)
			if !ok || status.status != c.status || !strings.Contains(strings.ToLower(status.body), c.body) {
				t.Errorf("got %v; want %d with %q", err, c.status, c.body)
			}
			if took := took(); took > 20*time.Second {
				t.Errorf("the answer took %v", took)
			}
			said := fmt.Sprint(err)
			if c.status != http.StatusGatewayTimeout && name != "status 999" { // plain answers may be slow, and odd
				_, err = w.ask(s, "GET", "app.guest.test:"+w.site.port)
				if status, ok = err.(*statusError); !ok || status.status != 502 && status.status != 503 {
					t.Errorf("a plain request: %v; want 502 or 503", err)
				}
				said += fmt.Sprint(err)
			}
			for _, text := range []string{said, s.Output()} {
				if strings.Contains(text, "wr0ng") || strings.Contains(text, "Sign in") {
					t.Errorf("this must not be told: %s", text)
				}
			}
		})
	}
}

// fakeProxy reads a request and answers it badly.
func fakeProxy(t *testing.T, answer func(*net.TCPConn)) string {
	return listen(t, func(c *net.TCPConn) {
		if _, err := http.ReadRequest(bufioReader(c)); err == nil {
			answer(c)
		}
	})
}

func manyHeaders(c *net.TCPConn) {
	fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
	for i := range 10_000 {
		if _, err := fmt.Fprintf(c, "X-%d: %s\r\n", i, strings.Repeat("x", 1000)); err != nil {
			return
		}
	}
}

func drip(c *net.TCPConn) {
	for _, b := range []byte("HTTP/1.1 200 OK\r\n" + strings.Repeat("X-Drip: 1\r\n", 100)) {
		if _, err := c.Write([]byte{b}); err != nil {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// A destination that speaks first loses no byte to the proxies in between.
func TestSidecarCustomerProxyKeepsFirstBytes(t *testing.T) {
	t.Parallel()
	w := newCustomerWorld(t)
	banner := "SSH-2.0-e2e " + strings.Repeat("x", 4000) + "\r\n"
	l := must(net.Listen("tcp", w.hosted.ip+":0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, banner)
			_ = c.(*net.TCPConn).CloseWrite()
		}
	}()
	s := w.sidecar(t, "konnectivity-https-proxy", []string{"KUBECONFIG=" + w.hosted.kubeconfig}, "--proxy-ca-cert-path="+w.squid.ca,
		"--https-proxy="+w.proxyURL(proxyKind{tls: true, auth: true, host: "squid.guest.test"}))
	_, port, _ := net.SplitHostPort(l.Addr().String())
	for i := range 20 {
		c := must(viaConnect("tcp", s.Address(), nil).Dial(within(t, patience), tunnel.NewFlow("tcp", "app.guest.test:"+port)))(t)
		got, err := io.ReadAll(c)
		c.Close()
		if err != nil || string(got) != banner {
			t.Fatalf("try %d: %d bytes, %v", i, len(got), err)
		}
	}
}

// tinyproxy is another proxy that customers have, here with Basic and in front
// of another one, which knows the names.
func TestSidecarCustomerTinyproxy(t *testing.T) {
	w := newCustomerWorld(t)
	port := testutil.Reserved(t)
	conf := fmt.Sprintf("Port %d\nListen %s\nTimeout 30\nMaxClients 20\nBasicAuth anna secret\nUpstream http %s:%d\n",
		port, w.squid.ip, w.squid.ip, w.squid.plain)
	file := filepath.Join(openDir(t), "tinyproxy.conf")
	if err := os.WriteFile(file, []byte(conf), 0o644); err != nil {
		t.Fatal(err)
	}
	p := external(t, "tinyproxy", "-d", "-c", file)
	address := net.JoinHostPort(w.squid.ip, fmt.Sprint(port))
	if err := suite.WaitListening(p, "tcp", address); err != nil {
		t.Fatal(err)
	}
	u := "http://anna:secret@" + address
	s := w.sidecar(t, "konnectivity-https-proxy", []string{"KUBECONFIG=" + w.hosted.kubeconfig}, "--http-proxy="+u, "--https-proxy="+u)
	for _, args := range [][]string{{}, {"--http1.0"}, {"--proxytunnel"}, {"--proxytunnel", "--http1.0"}} {
		args = append(append([]string{"--proxy", "http://" + s.Address()}, args...), "http://app.guest.test:"+w.site.port)
		if got, err := curl(t, args...); err != nil || string(got) != w.squid.source {
			t.Errorf("curl %q: from %q, %v", args, got, err)
		}
	}
	if n := s.dials(t, "customer_proxy"); n < 3 { // the two plain requests may share one
		t.Errorf("%v dials by tinyproxy", n)
	}
}
