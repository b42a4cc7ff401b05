package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"konnectivity/agent"
	"konnectivity/agent/egress"
	"konnectivity/cmd/konnectivity/internal/diagnose"
	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/cmd/konnectivity/internal/via"
	"konnectivity/internal/admin"
	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/pki"
	"konnectivity/internal/policy"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/unixsocket"
	"konnectivity/server"
	"konnectivity/server/auth"
	"konnectivity/tunnel"
)

var update = flag.Bool("update", false, "write the golden files anew")

// lab is a server and what else a test starts, all on loopback and all real.
type lab struct {
	t   *testing.T
	dir string
	ca  *pki.CA

	leaf    pki.Leaf // of the server
	options server.Options
	noAgent bool
	clients string // the server's addresses
	agents  string
	admin   string
	target  string // an echo server
	closed  string // nothing listens there
	args    []string
	checked string // HOST:PORT to check
}

func newLab(t *testing.T) *lab {
	t.Helper()
	l := &lab{t: t, dir: t.TempDir()}
	l.ca = testutil.Must(pki.NewCA("lab-ca"))(t)
	l.leaf = pki.Leaf{CommonName: "lab-server", DNS: []string{"localhost"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}
	l.write("ca.crt", l.ca.CertPEM)
	l.client(l.ca, pki.Leaf{CommonName: "lab-client", Client: true})
	l.options.ID = "server-1"
	l.closed = testutil.Refusing(t)
	return l
}

func (l *lab) write(name string, data []byte) {
	l.t.Helper()
	_ = os.Remove(l.file(name))
	testutil.NoError(l.t, os.WriteFile(l.file(name), data, 0o600))
}

func (l *lab) file(name string) string { return filepath.Join(l.dir, name) }

// client issues the certificate that check shows.
func (l *lab) client(ca *pki.CA, leaf pki.Leaf) {
	l.t.Helper()
	pair := testutil.Must(ca.Issue(leaf))(l.t)
	l.write("tls.crt", pair.CertPEM)
	l.write("tls.key", pair.KeyPEM)
}

// start brings up target, server and agent.
func (l *lab) start() {
	l.t.Helper()
	l.target = testutil.Echo(l.t)
	pair := testutil.Must(l.ca.Issue(l.leaf))(l.t)
	secure := func(_ tlsreload.Choose, protos ...string) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, ClientCAs: l.ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: protos, MinVersion: tls.VersionTLS12}
	}
	log := logging.Silent()
	o := l.options
	bare := secure
	if o.ClientTokens != nil {
		bare = func(choose tlsreload.Choose, protos ...string) *tls.Config {
			config := secure(choose, protos...)
			config.ClientAuth = tls.VerifyClientCertIfGiven
			return config
		}
	}
	clients, agents, admin := testutil.Listen(l.t), testutil.Listen(l.t), testutil.Listen(l.t)
	l.clients, l.agents, l.admin = clients.Addr().String(), agents.Addr().String(), admin.Addr().String()
	uds := testutil.Must(unixsocket.Listen(l.file("uds"), unixsocket.Options{}))(l.t)
	o.Clients, o.Agents, o.Admin = []server.Listener{{Listener: clients, TLS: bare}, {Listener: uds}}, []server.Listener{{Listener: agents, TLS: secure}}, admin
	o.Grace, o.Log, o.Registry = -1, log, prometheus.NewRegistry()
	srv := testutil.Must(server.New(o))(l.t)
	testutil.Start(l.t, func(ctx context.Context) { _ = srv.Run(ctx) })
	if l.noAgent {
		return
	}
	agentPair := testutil.Must(l.ca.Issue(pki.Leaf{CommonName: "agent", Client: true}))(l.t)
	a, err := agent.New(agent.Options{
		ID: "agent-1", Servers: []string{l.agents}, Dialer: egress.New(egress.Options{}), Grace: -1, Log: log,
		TLS: func(_ string, protos ...string) *tls.Config {
			return &tls.Config{RootCAs: l.ca.Pool(), ServerName: l.leaf.DNS[0], Certificates: []tls.Certificate{agentPair.TLS()}, NextProtos: protos, MinVersion: tls.VersionTLS12}
		},
	})
	testutil.NoError(l.t, err)
	testutil.Start(l.t, func(ctx context.Context) { _ = a.Run(ctx) })
	testutil.Eventually(l.t, "the server has its agent", func() bool { return srv.Ready() == nil })
}

// expired is an API that takes every token for one that has expired.
type expired struct{}

func (expired) Create(context.Context, kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
	return kubeapi.TokenReviewStatus{Error: "token has expired"}, nil
}

// takesTokens has the server take tokens of clients, and gives check one that has expired.
func (l *lab) takesTokens() {
	l.options.ClientTokens = &auth.TokensConfig{Reviews: expired{}, Clients: true, Audience: "server", Accounts: []auth.Account{{Namespace: "a", Name: "b"}}}
	l.write("token", []byte("abc\n"))
}

// waitMeasured waits until the server knows how far its agent is.
func (l *lab) waitMeasured() {
	l.t.Helper()
	testutil.Eventually(l.t, "the round trip to the agent", func() bool {
		_, out, _ := konnectivity("status", l.admin, "-o", "json")
		var reports []status.Report
		testutil.NoError(l.t, json.Unmarshal([]byte(out), &reports))
		return slices.ContainsFunc(reports[0].Peers, func(p admin.Peer) bool { return p.Role == admin.RoleAgent && p.RoundTrip > 0 })
	})
}

// check runs konnectivity check as the lab is.
func (l *lab) check(more ...string) (status int, out string) {
	l.t.Helper()
	host, port, err := net.SplitHostPort(l.clients)
	testutil.NoError(l.t, err)
	args := []string{"check", "--konnectivity-hostname=" + host, "--konnectivity-port=" + port, "--kubeconfig=", "--serving-port=0", "--timeout=20s"}
	args = slices.Concat(args, l.tlsArgs(), l.args, more)
	if l.checked != "" {
		args = append(args, l.checked)
	}
	status, out, stderr := konnectivity(args...)
	testutil.Requires(l.t, status != 2, "%v", stderr)
	return status, out
}

// settled replaces what differs from run to run.
func (l *lab) settled(out string) string {
	for text, name := range map[string]string{l.dir: "DIR", l.clients: "SERVER", l.admin: "ADMIN", l.agents: "AGENTS", l.target: "TARGET", l.closed: "CLOSED"} {
		if text != "" {
			out = strings.ReplaceAll(out, text, name)
		}
	}
	for pattern, by := range map[string]string{
		` \([0-9.]+ ms\)`: " (TIME)", `\d{4}-\d\d-\d\d \d\d:\d\d UTC`: "DATE", `127\.0\.0\.1:\d+`: "ADDRESS", `localhost:\d+`: "localhost:PORT", `expires in [\d.]+ (s|min|h)`: "expires in TIME",
		`konnectivity-server [^,]*,`: "konnectivity-server VERSION,",
	} {
		out = regexp.MustCompile(pattern).ReplaceAllString(out, by)
	}
	return out
}

// fault is something that check reports, made real. Its output is in testdata/check.
type fault struct {
	status          int
	nowhere         bool // no server is started, since check ends before it asks one
	noAgent, noLink bool
	before, after   func(*lab) // the start of server and agent
	args            string     // more flags; ADMIN is the server's admin port, DIR the lab's folder
	to              string     // HOST:PORT to check; TARGET answers, CLOSED refuses
}

func (f fault) make(l *lab) {
	l.noAgent, l.options.NoLink = f.noAgent, f.noLink
	if f.before != nil {
		f.before(l)
	}
	if l.clients = "127.0.0.1:1"; !f.nowhere {
		l.start()
	}
	if f.after != nil {
		f.after(l)
	}
	l.args = append(l.args, strings.Fields(strings.NewReplacer("ADMIN", l.admin, "DIR", l.dir).Replace(f.args))...)
	if f.to != "" {
		l.checked = strings.NewReplacer("TARGET", l.target, "CLOSED", l.closed).Replace(f.to)
	}
}

// shows makes check show a certificate for leaf.
func shows(leaf pki.Leaf) func(*lab) {
	leaf.CommonName = "lab-client"
	return func(l *lab) { l.client(l.ca, leaf) }
}

// showsStranger makes check show a certificate of another CA.
func showsStranger(l *lab) {
	l.client(testutil.Must(pki.NewCA("another-ca"))(l.t), pki.Leaf{CommonName: "stranger", Client: true})
}

// namedOnly gives the server's certificate these names, and no address.
func namedOnly(names ...string) func(*lab) {
	return func(l *lab) { l.leaf.IPs, l.leaf.DNS = nil, names }
}

// denyTens makes dials to 10.0.0.0/8 fail at once.
func denyTens(l *lab) {
	l.options.Policy = testutil.Must(policy.Parse(nil, []string{"10.0.0.0/8"}))(l.t)
}

// behindProxy has the checked sidecar use a customer's proxy that answers every request
// with status.
func behindProxy(status int) func(*lab) {
	return func(l *lab) {
		proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
		l.t.Cleanup(proxy.Close)
		l.args = []string{"--https-proxy=http://user:hunter2@" + proxy.Listener.Addr().String()}
	}
}

// speaksTLS has check ask a server of TLS that is none of ours.
func speaksTLS(clientAuth tls.ClientAuthType, serve func(net.Conn)) func(*lab) {
	return func(l *lab) {
		pair := testutil.Must(l.ca.Issue(l.leaf))(l.t)
		config := &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, ClientCAs: l.ca.Pool(), ClientAuth: clientAuth, NextProtos: []string{"http/1.1"}}
		l.clients = testutil.Serve(l.t, func(c *net.TCPConn) {
			secure := tls.Server(c, config)
			defer secure.Close()
			serve(secure)
		})
	}
}

const withAdmin = "--server-admin=ADMIN"

var faults = map[string]fault{
	"healthy": {after: (*lab).waitMeasured, args: withAdmin, to: "TARGET"},
	"healthy by name": {after: func(l *lab) {
		_, port, _ := net.SplitHostPort(l.target)
		l.checked = "localhost:" + port
	}},
	"no destination given": {},
	"files missing": {status: 1, nowhere: true, after: func(l *lab) {
		testutil.NoError(l.t, os.Remove(l.file("ca.crt")))
		testutil.NoError(l.t, os.Remove(l.file("tls.key")))
	}},
	"files are something else": {status: 1, nowhere: true, after: func(l *lab) {
		l.write("ca.crt", []byte("not a certificate"))
		l.write("tls.crt", []byte("neither"))
	}},
	"key of another certificate": {status: 1, nowhere: true, after: func(l *lab) {
		pair := testutil.Must(l.ca.Issue(pki.Leaf{CommonName: "other", Client: true}))(l.t)
		l.write("tls.key", pair.KeyPEM)
	}},
	"client certificate expired":        {status: 1, nowhere: true, after: shows(pki.Leaf{Client: true, Lifetime: -time.Hour})},
	"client certificate is for servers": {status: 1, nowhere: true, after: shows(pki.Leaf{Server: true})},
	"client certificate of another role": {
		status: 1, nowhere: true,
		after: shows(pki.Leaf{Client: true, Holder: pki.Holder{Role: pki.RoleAgent, TrustDomain: pki.DefaultTrustDomain}}),
	},
	"client certificate of tomorrow": {status: 1, nowhere: true, after: func(l *lab) { // or a clock of yesterday
		l.valid(time.Now().Add(24*time.Hour), time.Now().Add(48*time.Hour))
	}},
	"client certificate expires soon": {after: func(l *lab) {
		l.valid(time.Now().Add(-24*time.Hour), time.Now().Add(time.Hour))
	}},
	"server of another role": {
		status: 1,
		before: func(l *lab) { l.leaf.Holder = pki.Holder{Role: pki.RoleClient, TrustDomain: pki.DefaultTrustDomain} },
		after:  shows(pki.Leaf{Client: true, Holder: pki.Holder{Role: pki.RoleClient, TrustDomain: pki.DefaultTrustDomain}}),
	},
	"server refuses the client certificate": {status: 1, after: showsStranger},
	"no client certificate":                 {status: 1, args: "--tls-cert-path= --tls-key-path="},
	"token that the server does not want":   {status: 1, args: "--tls-cert-path= --tls-key-path= --token-path=DIR/token", before: func(l *lab) { l.write("token", []byte("abc\n")) }},
	"token that the server refuses":         {status: 1, args: "--tls-cert-path= --tls-key-path= --token-path=DIR/token", before: (*lab).takesTokens},
	"no token":                              {status: 1, nowhere: true, args: "--tls-cert-path= --tls-key-path= --token-path=DIR/token"},
	"wrong CA": {status: 1, after: func(l *lab) {
		l.write("ca.crt", testutil.Must(pki.NewCA("another-ca"))(l.t).CertPEM)
	}},
	"wrong name in the server's certificate": {status: 1, before: namedOnly("proxy.example.com", "konnectivity-server-local")},
	"server asked for by another name":       {before: namedOnly("cluster-a.example.com"), args: "--server-name=cluster-a.example.com"},
	"server asked for by a mistyped name":    {status: 1, before: namedOnly("cluster-a.example.com"), args: "--server-name=clutser-a.example.com"},
	"server's certificate expired":           {status: 1, noAgent: true, before: func(l *lab) { l.leaf.Lifetime = -time.Hour }},
	"nothing listens":                        {status: 1, nowhere: true, after: func(l *lab) { l.clients = l.closed }},
	"no TLS there": {status: 1, nowhere: true, after: func(l *lab) {
		l.clients = testutil.Serve(l.t, func(c *net.TCPConn) {
			_, _ = c.Read(make([]byte, 1))
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		})
	}},
	"server hangs":                              {status: 1, nowhere: true, after: func(l *lab) { l.clients = says(l.t, "") }, args: "--timeout=300ms"},
	"port for agents":                           {status: 1, after: func(l *lab) { l.clients = l.agents }},
	"port for agents and a token":               {status: 1, args: "--token-path=DIR/token", before: func(l *lab) { l.write("token", []byte("abc\n")) }, after: func(l *lab) { l.clients = l.agents }},
	"old server":                                {noLink: true, to: "TARGET"},
	"old server and link required":              {status: 1, noLink: true, args: "--link=require"},
	"old server refuses the client certificate": {status: 1, noLink: true, after: showsStranger},
	"no agent":                                  {status: 1, noAgent: true, args: withAdmin, to: "10.0.0.1:443"},
	"no agent and a link":                       {status: 1, noAgent: true},
	"no agent and no link":                      {status: 1, noAgent: true, args: "--link=off"},
	"server that tells nothing of agents": {nowhere: true, after: speaksTLS(tls.RequireAndVerifyClientCert, func(c net.Conn) {
		if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
			_, _ = io.WriteString(c, "HTTP/1.1 405 Method Not Allowed\r\nContent-Length: 0\r\n\r\n")
		}
	})},
	"server that speaks first": {status: 1, nowhere: true, after: speaksTLS(tls.NoClientCert, func(c net.Conn) {
		_, _ = io.WriteString(c, "* OK IMAP4rev1 ready\r\n")
		_, _ = io.Copy(io.Discard, c)
	})},
	"admin port away":              {after: func(l *lab) { l.args = []string{"--server-admin=" + l.closed} }},
	"admin port away and no agent": {status: 1, noAgent: true, after: func(l *lab) { l.args = []string{"--server-admin=" + l.closed} }},
	"agents of others": {status: 1, noAgent: true, args: withAdmin, after: func(l *lab) { // as of another tenant, or another server
		other := newLab(l.t)
		other.start()
		other.waitMeasured()
		l.admin = other.admin
	}},
	"destination denied":  {status: 1, before: denyTens, to: "10.0.0.1:443"},
	"destination refuses": {status: 1, to: "CLOSED"},
	"guest DNS down":      {status: 1, after: (*lab).guest, to: "db.example.com:5432"},
	"kubeconfig missing":  {status: 1, args: "--kubeconfig=DIR/none --resolve-from-guest-cluster-dns", to: "db.example.com:5432"},
	// Loopback goes by no proxy. Without the proxy, the dial is denied at once.
	"customer proxy wants auth": {status: 1, before: denyTens, after: behindProxy(http.StatusProxyAuthRequired), to: "10.0.0.1:443"},
	"customer proxy fails":      {status: 1, before: denyTens, after: behindProxy(http.StatusServiceUnavailable), to: "10.0.0.1:443"}, // as squid does without an answer
	"no sidecar listens": {to: "TARGET", after: func(l *lab) {
		_, port, _ := net.SplitHostPort(l.closed)
		l.args = []string{"--serving-port=" + port}
	}},
}

// valid issues a client certificate that is valid in such a time.
func (l *lab) valid(from, until time.Time) {
	l.t.Helper()
	pair := testutil.Must(l.ca.Issue(pki.Leaf{CommonName: "lab-client", Client: true}))(l.t)
	block, _ := pem.Decode(l.ca.KeyPEM)
	key := testutil.Must(x509.ParsePKCS8PrivateKey(block.Bytes))(l.t)
	leaf := *pair.TLS().Leaf
	leaf.NotBefore, leaf.NotAfter = from, until
	der := testutil.Must(x509.CreateCertificate(rand.Reader, &leaf, l.ca.Certificate(), leaf.PublicKey, key))(l.t)
	l.write("tls.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	l.write("tls.key", pair.KeyPEM)
}

// guest is a hosted cluster whose DNS Service has an address where nothing listens.
func (l *lab) guest() {
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/namespaces/openshift-dns/services/dns-default") {
			w.WriteHeader(http.StatusNotFound)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Service","apiVersion":"v1","metadata":{"name":"dns-default","namespace":"openshift-dns"},"spec":{"clusterIP":"127.255.255.254","clusterIPs":["127.255.255.254"]}}`)
	}))
	l.t.Cleanup(api.Close)
	l.write("kubeconfig", []byte(fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: lab
contexts: [{name: lab, context: {cluster: lab, user: lab}}]
clusters: [{name: lab, cluster: {server: %q}}]
users: [{name: lab, user: {}}]
`, api.URL)))
	l.args = []string{"--kubeconfig=" + l.file("kubeconfig"), "--resolve-from-guest-cluster-dns"}
}

func TestCheckFaults(t *testing.T) {
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			l := newLab(t)
			fault.make(l)
			status, out := l.check()
			got := l.settled(out)
			golden := filepath.Join("testdata", "check", strings.NewReplacer(" ", "-", "'", "").Replace(name)+".txt")
			if *update {
				testutil.NoError(l.t, os.MkdirAll(filepath.Dir(golden), 0o755))
				testutil.NoError(l.t, os.WriteFile(golden, []byte(got), 0o644))
			}
			want := testutil.Must(os.ReadFile(golden))(l.t)
			testutil.Holds(t, status == fault.status && got == string(want),
				"status %d, want %d; it says\n%s\nwant\n%s", status, fault.status, got, want)
			testutil.Holds(t, !strings.Contains(out, "hunter2"), "a password is shown")
		})
	}
}

// Every cross and every warning says what to do.
func TestCheckHintsAreComplete(t *testing.T) {
	files, err := filepath.Glob("testdata/check/*.txt")
	testutil.Requires(t, err == nil && len(files) >= len(faults),
		"%d golden files for %d faults: %v", len(files), len(faults), err)
	for _, file := range files {
		data := testutil.Must(os.ReadFile(file))(t)
		lines := strings.Split(string(data), "\n")
		for i, line := range lines {
			testutil.Holds(t, !strings.HasPrefix(line, "✘") && !strings.HasPrefix(line, "!") ||
				strings.HasPrefix(lines[i+1], "    → "), "%s: no hint for %q", file, line)
		}
	}
}

func TestCheckJSON(t *testing.T) {
	l := newLab(t)
	l.noAgent = true
	l.start()
	l.checked = "10.0.0.1:443"
	status, out := l.check("-o", "json")
	var findings []diagnose.Finding
	testutil.NoError(l.t, json.Unmarshal([]byte(out), &findings))
	last := findings[len(findings)-1]
	testutil.Holds(t, status == 1 && last.Result == diagnose.Failed && last.Hint != "" &&
		strings.Contains(last.Cause, "no agent"), "%d %+v", status, last)
}

// A sidecar that cannot be asked is not one that is not there.
func TestCheckReportsUnusableSocket(t *testing.T) {
	l := newLab(t)
	l.start()
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: l.file("s"), Net: "unixgram"}) // to which no connection is possible
	if err != nil {
		t.Skip(err)
	}
	defer socket.Close()
	l.args = []string{"--serving-uds=" + l.file("s")}
	l.checked = l.target
	if status, out := l.check(); status != 0 || !strings.Contains(out, "! sidecar at "+l.file("s")+": it cannot be asked: ") {
		t.Errorf("%d\n%s", status, out)
	}
	here := testutil.Must(os.Getwd())(t)
	for _, path := range []string{l.file("none"), testutil.Must(filepath.Rel(here, l.file("none")))(t)} {
		l.args = []string{"--serving-uds=" + path}
		if status, out := l.check(); status != 0 || !strings.Contains(out, "- sidecar at "+l.file("none")+": nothing listens there") {
			t.Errorf("%s: %d\n%s", path, status, out)
		}
	}
}

// check and dial show a token to the admin port.
func TestCheckAndDialWithToken(t *testing.T) {
	l := newLab(t)
	token := admin.NewToken()
	digest := testutil.Must(admin.ParseToken(token))(l.t)
	l.options.AdminToken = func() admin.TokenDigest { return digest }
	l.write("token", token)
	l.start()
	with := "--token-file=" + l.file("token")
	l.args = []string{"--server-admin=" + l.admin}
	_, out := l.check()
	testutil.Holds(t, strings.Contains(out, "it wants a token"), "check without a token:\n%s", out)
	if status, out := l.check(with); status != 0 || !strings.Contains(out, "✔ agents for default: 1") {
		t.Errorf("check: %d\n%s", status, out)
	}
	args := append(l.tlsArgs(), "--via=link://"+l.clients, "-v", "--server-admin="+l.admin, with, l.lastWord())
	if status, _, stderr := dial(strings.NewReader("hello"), args...); status != 0 || !strings.Contains(stderr, "agent agent-1 at 127.0.0.1:") {
		t.Errorf("dial: %d %s", status, stderr)
	}
}

func (l *lab) tlsFiles() tlsreload.Files {
	return tlsreload.Files{CA: l.file("ca.crt"), Cert: l.file("tls.crt"), Key: l.file("tls.key")}
}

// stall opens a connection through the server whose destination never reads,
// and fills it until nothing more goes in.
func (l *lab) stall() (stop func()) {
	l.t.Helper()
	over := make(chan struct{})
	deaf := testutil.Serve(l.t, func(*net.TCPConn) { <-over })
	l.t.Cleanup(func() { close(over) })
	d, closeDialer, err := via.Dialer("link://"+l.clients, via.TLS{Files: l.tlsFiles()})
	testutil.NoError(l.t, err)
	conn := testutil.Must(d.Dial(l.t.Context(), &tunnel.Flow{Request: tunnel.Request{ID: "stalled-one", Network: "tcp", Address: deaf}}))(l.t)
	go func() { // ends with the connection
		block := make([]byte, 64<<10)
		for {
			if _, err := conn.Write(block); err != nil {
				return
			}
		}
	}()
	return func() { _ = conn.Reset(nil); closeDialer() }
}

func TestThroughSidecars(t *testing.T) {
	d := testutil.Must(newDemo(t.TempDir()))(t)
	l := newLab(t)
	testutil.Start(l.t, func(ctx context.Context) { _ = d.serve(ctx) })
	d.waitReady(t.Context())
	socks, proxy, socket := d.ports.socks5.Addr().String(), d.ports.http.Addr().String(), l.socketOf(d.ports.http)
	address := l.lastWord()
	for _, way := range []string{"socks5://" + socks, "http://" + proxy, "http://" + socket} {
		status, out, stderr := dial(strings.NewReader("hello"), "--via="+way, address)
		testutil.Holds(t, status == 0 && out == "got 5 B" && stderr == "", "%s: %d %q %q", way, status, out, stderr)
		status, _, stderr = dial(strings.NewReader(""), "--via="+way, "-v", l.closed)
		testutil.Holds(t, status == 1 && strings.Contains(stderr, "connection refused") &&
			strings.Contains(stderr, "nothing listens"), "%s: %d %q", way, status, stderr)
	}
	port := func(address string) string { return address[strings.LastIndexByte(address, ':')+1:] }
	l.clients, l.checked = d.ports.clients.Addr().String(), d.ports.web.Addr().String()
	l.args = []string{"--serving-port=" + port(socks), "--http-serving-port=" + port(proxy), "--serving-uds=" + socket,
		"--ca-cert-path=" + d.files().CA, "--tls-cert-path=" + d.files().Cert, "--tls-key-path=" + d.files().Key}
	status, out := l.check()
	testutil.Equal(t, status, 0, "the status of check")
	for _, want := range []string{"✔ SOCKS5 sidecar at " + socks, "✔ HTTP sidecar at " + proxy, "✔ HTTP sidecar at " + socket, "✔ connection as by SOCKS5"} {
		testutil.Contains(t, out, want, "check")
	}
}
