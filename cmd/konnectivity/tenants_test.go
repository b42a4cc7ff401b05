package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/tenant"
)

// makeTenant makes one and returns the folders for the server and the cluster.
func makeTenant(t *testing.T, dir, name string, more ...string) (folder, cluster, said string) {
	t.Helper()
	args := append([]string{"tenants", "make", name, "--dir=" + dir, "--server-name=" + name + ".example.com"}, more...)
	out := succeed(t, args...)
	return filepath.Join(dir, "tenants", name), filepath.Join(dir, "clusters", name), out
}

// What is made is what the server reads, and its certificates are those that
// it, the agents and the clients accept.
func TestTenantsMake(t *testing.T) {
	dir := t.TempDir()
	folder, cluster, said := makeTenant(t, dir, "cluster-a", "--server-name=A2.example.com", "--agents-at=203.0.113.7:443", "--clients-at=a2.example.com:8090")
	made := testutil.Must(tenant.Load("cluster-a", folder))(t)
	testutil.Holds(t, strings.Join(made.ServerNames, " ") == "cluster-a.example.com a2.example.com" && made.Cert != nil,
		"it has the names %v and the certificate %v", made.ServerNames, made.Cert)
	for name, ca := range map[string]*tenant.CAs{"agent": made.Agents, "client": made.Clients} {
		leaf := load(t, cluster, name)
		testutil.Succeeds(t, ca.Recheck([]*x509.Certificate{leaf}), "the certificate of the %s", name)
		testutil.EqualSlices(t, leaf.ExtKeyUsage, clientAlone, "what that of the %s is for", name)
	}
	roots := x509.NewCertPool()
	roots.AddCert(load(t, cluster, "ca"))
	for _, name := range made.ServerNames {
		testutil.Succeeds(t, testutil.Err(made.Cert.Leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots})), "verify")
	}
	for _, want := range []string{
		"--tenants-dir=" + filepath.Dir(folder), "--proxy-server-host=203.0.113.7 --proxy-server-port=443 --server-name=cluster-a.example.com",
		"--konnectivity-hostname=a2.example.com --konnectivity-port=8090 \\", "url: https://a2.example.com:8090\n", "--agent-key=" + filepath.Join(cluster, "agent.key"),
	} {
		testutil.Contains(t, said, want, "what is said")
	}
	testutil.Equal(t, testutil.Must(os.Stat(filepath.Join(folder, "server.key")))(t).Mode(), 0o600, "mode of the key")
	testutil.Equal(t, len(testutil.Must(os.ReadDir(filepath.Dir(folder)))(t)), 1, "folders, none beside it")
	expect(t, 1, "exists already and nothing was written", "tenants", "make", "cluster-a", "--dir="+dir, "--server-name=x.example.com")
	for _, want := range []string{"konnectivity status SERVER:8095 --token-file=", "konnectivity status https://SERVER:8095 --ca-cert-path=ADMIN-CA --token-file="} {
		testutil.Contains(t, said, want+filepath.Join(cluster, "reader-token")+"\n", "what is said")
	}
	newFolder, newCluster, said := makeTenant(t, t.TempDir(), "cluster-a", "--from="+cluster, "--clients-at=203.0.113.7:8090")
	testutil.Contains(t, said, "url: https://cluster-a.example.com:8090\n", "the URL, whose host is what the certificate has")
	renewed, err := tenant.Load("cluster-a", newFolder)
	testutil.Holds(t, err == nil && renewed.Agents.Digest == made.Agents.Digest, "renewed by another CA: %v", err)
	testutil.ErrorIs(t, testutil.Err(os.Stat(filepath.Join(newCluster, "ca.key"))), fs.ErrNotExist, "a copy of the CA's key")
}

// A tenant that the server would refuse for what another has is not made.
func TestTenantsMakeRefusesWhatAnotherHas(t *testing.T) {
	dir := t.TempDir()
	_, cluster, _ := makeTenant(t, dir, "a", "--agent-port=9091")
	makeTenant(t, dir, "c", "--from="+cluster, "--by-identity")
	testutil.NoError(t, os.Mkdir(filepath.Join(dir, "tenants", "empty"), 0o755))
	whole, ofWhole, _ := makeTenant(t, dir, "d", "--client-port=9092")
	testutil.NoError(t, os.WriteFile(filepath.Join(whole, "tenant.yaml"), []byte("serverNames: [d.example.com]\nbyCertificate: true\nlisten: {clientPort: 9092}\n"), 0o644))
	for want, args := range map[string][]string{
		`--client-port: the port 9092 is that of the tenant "d" already; nothing was written`: {"--server-name=b.example.com", "--client-port=9092"},
		"--from: with byCertificate, ": {"--server-name=b.example.com", "--by-identity", "--from=" + ofWhole},
		`--server-name: a.example.com is the name of the tenant "a" already; nothing was written`:                       {"--server-name=b.example.com", "--server-name=A.example.com"},
		`--agent-port: the port 9091 is that of the tenant "a" already; nothing was written`:                            {"--server-name=b.example.com", "--agent-port=9091"},
		`--trust-domain: "spiffe://c/konnectivity/agent" is an identity of the tenant "c" already; nothing was written`: {"--server-name=b.example.com", "--by-identity", "--from=" + cluster, "--trust-domain=c"},
	} {
		expect(t, 1, want, append([]string{"tenants", "make", "b", "--dir=" + dir}, args...)...)
	}
	for _, made := range []string{"tenants", "clusters"} {
		testutil.ErrorIs(t, testutil.Err(os.Stat(filepath.Join(dir, made, "b"))), fs.ErrNotExist, "what is made of it")
	}
	makeTenant(t, dir, "b")
}

// A tenant that cannot be written whole is not there at all, and can be made again.
func TestTenantFoldersAreAtomic(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("nowhere", filepath.Join(dir, "tenants")); err != nil {
		t.Skip(err)
	}
	status, _, stderr := konnectivity("certs", dir, "--tenant=red", "--server-name=red.example.com")
	testutil.Requires(t, status == 1, "status %d %q", status, stderr)
	testutil.NoError(t, os.Remove(filepath.Join(dir, "tenants")))
	succeed(t, "certs", dir, "--tenant=red", "--server-name=red.example.com")
}

// certs --tenant is the same.
func TestCertsOfTenant(t *testing.T) {
	dir := t.TempDir()
	said := succeed(t, "certs", dir, "--tenant=b", "--server-name=b.example.com", "--kubernetes", "--namespace=control-b", "--server-namespace=shared")
	for file, want := range map[string]map[string]string{
		"kubernetes-server.yaml":        {"konnectivity-tenant-b": "shared"},
		"kubernetes-control-plane.yaml": {"konnectivity-client": "control-b", "konnectivity-ca-bundle": "control-b"},
		"kubernetes-data-plane.yaml":    {"konnectivity-agent": "kube-system", "konnectivity-ca-bundle": "kube-system"},
	} {
		path := filepath.Join(dir, "clusters", "b", file)
		data := testutil.Must(os.ReadFile(path))(t)
		testutil.Contains(t, said, "kubectl apply -f "+path, "the summary")
		for name, namespace := range want {
			if file == "kubernetes-server.yaml" && !strings.Contains(string(data), "labels:\n    "+tenant.SecretLabel+": b\n") {
				t.Errorf("a server that watches Secrets does not find it:\n%s", data)
			}
			testutil.Contains(t, string(data), "name: "+name+"\n  namespace: "+namespace+"\n", "%s", file)
		}
	}
}

func TestTenantsCheck(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes say nothing there")
	}
	other := testutil.Must(pki.NewCA("other"))(t)
	old := testutil.Must(pki.NewCAFor("old", -time.Hour))(t)
	both := func(put func(string, []byte)) { put("clients-ca.crt", slices.Concat(old.CertPEM, other.CertPEM)) }
	soon := testutil.Must(pki.NewCAFor("soon", time.Hour))(t)
	issue := func(ca *pki.CA, leaf pki.Leaf) func(put func(string, []byte)) {
		return func(put func(string, []byte)) {
			pair := testutil.Must(ca.Issue(leaf))(t)
			put("server.crt", pair.CertPEM)
			put("server.key", pair.KeyPEM)
		}
	}
	lists := func(good time.Duration) func(put func(string, []byte)) {
		return func(put func(string, []byte)) {
			put("clients-ca.crt", other.CertPEM)
			put("ca.crl", testutil.Must(other.Revoke(time.Now().Add(good)))(t))
		}
	}
	names, token := []string{"a.example.com"}, admin.NewToken() // token is that of b
	for what, c := range map[string]struct {
		change func(put func(string, []byte))
		status int
		want   string
	}{
		"nothing":         {func(func(string, []byte)) {}, 0, "✔ folder: asked for as a.example.com"},
		"no CA of agents": {func(put func(string, []byte)) { put("agents-ca.crt", nil) }, 1, "✘ folder: agents-ca.crt is not there"},
		"a name of another": {func(put func(string, []byte)) {
			put("tenant.yaml", []byte("serverNames: [B.example.com]"))
			put("server.crt", nil)
			put("server.key", nil)
		}, 1, "✘ names: tenant.yaml: serverNames[0]: b.example.com is the name of the tenant \"b\" already"},
		"an expired CA":    {func(put func(string, []byte)) { put("clients-ca.crt", old.CertPEM) }, 1, "✘ CA of clients: clients-ca.crt expired on"},
		"an old and a new": {both, 0, "! CA of clients: old of clients-ca.crt expired on"},
		"a new and an old": {both, 0, "✔ CA of clients: other, valid until"},
		"each CA's date": {func(put func(string, []byte)) { put("clients-ca.crt", slices.Concat(other.CertPEM, soon.CertPEM)) }, 0,
			"; soon, valid until " + testutil.Must(tlsreload.Certificates(soon.CertPEM))(t)[0].NotAfter.UTC().Format("2006-01-02 15:04 UTC")},
		"another's server":   {issue(other, pki.Leaf{CommonName: "server", DNS: names, Server: true}), 0, "issued by neither of the tenant's CAs"},
		"an expired server":  {issue(other, pki.Leaf{CommonName: "server", DNS: names, Server: true, Lifetime: -time.Hour}), 1, "✘ certificate of the server: server.crt expired on"},
		"a client as server": {issue(other, pki.Leaf{CommonName: "client", DNS: names, Client: true}), 1, "lacks serverAuth"},
		"another role":       {issue(other, pki.Leaf{CommonName: "server", DNS: names, Server: true, Holder: pki.Holder{Role: pki.RoleAgent, TrustDomain: "x"}}), 1, "has the role agent"},
		"no server":          {func(put func(string, []byte)) { put("server.crt", nil); put("server.key", nil) }, 0, "that of the server's flags has to have its names"},
		"no reader":          {func(put func(string, []byte)) { put("reader-token", nil) }, 0, "reader: none"},
		"a short token":      {func(put func(string, []byte)) { put("reader-token", []byte("guess me")) }, 1, "✘ folder: reader-token: the token has 8 characters: want at least 32, random ones"},
		"a token of another": {func(put func(string, []byte)) { put("reader-token", token) }, 1, `✘ reader: the token of reader-token is that of the tenant "b", too`},
		"no list":            {func(func(string, []byte)) {}, 0, "✔ revocation lists: none: there is no ca.crl"},
		"a list":             {lists(time.Hour), 0, "✔ revocation lists: in ca.crl, valid until"},
		"an old list":        {lists(-time.Minute), 0, "! revocation lists: ca.crl is out of date since"},
		"a key alone":        {func(put func(string, []byte)) { put("server.crt", nil) }, 1, "server.key: a key without server.crt"},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			beside, _, _ := makeTenant(t, dir, "b")
			testutil.NoError(t, os.WriteFile(filepath.Join(beside, "reader-token"), token, 0o600))
			folder, _, _ := makeTenant(t, dir, "a")
			c.change(func(name string, data []byte) {
				path := filepath.Join(folder, name)
				if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
					testutil.NoError(t, err)
				}
				if data == nil {
					return
				}
				testutil.NoError(t, os.WriteFile(path, data, 0o600))
			})
			expect(t, c.status, c.want, "tenants", "check", folder)
		})
	}
}

// Secrets are checked as a manifest has them, by name and with others beside them.
func TestTenantsCheckReadsSecrets(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		succeed(t, "certs", dir, "--tenant="+name, "--server-name="+name+".example.com", "--kubernetes")
	}
	read := func(name, file string) string {
		text := testutil.Must(os.ReadFile(filepath.Join(dir, "clusters", name, file)))(t)
		return string(text)
	}
	one, others := read("a", "kubernetes-server.yaml"), read("b", "kubernetes-control-plane.yaml")
	for _, c := range map[string]struct {
		text   string
		status int
		want   string
	}{
		"one":               {one, 0, "✔ Secret: asked for as a.example.com"},
		"one among others":  {others + "\n" + one, 0, "✔ Secret: asked for as a.example.com"},
		"two":               {read("b", "kubernetes-server.yaml") + "\n" + one, 0, "✔ Secret: asked for as b.example.com"},
		"a list":            {"kind: List\nitems:\n- kind: ConfigMap\n  data: {a: b}\n- kind: Secret\n  metadata: {name: x}\n  stringData: {tenant.yaml: \"serverNames: [x.y]\"}\n", 1, "✘ Secret: clients-ca.crt is not there"},
		"two of one name":   {one + "\n" + strings.Replace(one, "name: konnectivity-tenant-a", "name: again", 1), 1, `is the name of the tenant "a" already`},
		"no label":          {strings.Replace(one, "    konnectivity-tenant: a\n", "    x: z\n", 1), 0, "! label: it has no label konnectivity-tenant"},
		"none":              {others, 1, "no tenant's Secret in it"},
		"no manifest":       {"{", 1, "it is no manifest"},
		"data that is none": {strings.Replace(one, "tenant.yaml: ", "tenant.yaml: ?", 1), 1, "it is no manifest"},
	} {
		file := filepath.Join(t.TempDir(), "secrets.yaml")
		testutil.NoError(t, os.WriteFile(file, []byte(c.text), 0o600))
		expect(t, c.status, c.want, "tenants", "check", file)
	}
	file := filepath.Join(dir, "clusters", "a", "kubernetes-server.yaml")
	for digest, want := range map[string]string{ // the Secret has what the folder has
		testutil.Must(tenant.Load("a", filepath.Join(dir, "tenants", "a")))(t).Digest(): "✔ server: ",
		"other": "✘ server: it serves other files than these",
	} {
		at := adminOf(t, admin.Tenant{Name: "a", State: "serving", Ready: true, Digest: digest})
		_, out, _ := konnectivity("tenants", "check", file, "--server-admin="+at)
		testutil.Contains(t, out, want, "with the digest %s", digest)
	}
}

// Of several Secrets that have what another has, the first in the manifest is told.
func TestTenantsCheckConflict(t *testing.T) {
	dir := t.TempDir()
	succeed(t, "certs", dir, "--tenant=a", "--server-name=a.example.com", "--kubernetes")
	one := testutil.Must(os.ReadFile(filepath.Join(dir, "clusters", "a", "kubernetes-server.yaml")))(t)
	text := string(one)
	for _, name := range []string{"b", "c", "d", "e"} {
		text += "\n" + strings.Replace(string(one), "name: konnectivity-tenant-a", "name: "+name, 1)
	}
	file := filepath.Join(t.TempDir(), "secrets.yaml")
	testutil.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	status, out, stderr := konnectivity("tenants", "check", file)
	for name, want := range map[string]int{"a": 4, "b": 1} {
		got := strings.Count(out, fmt.Sprintf("is the name of the tenant %q already", name))
		testutil.Holds(t, status == 1 && got == want, "%d of %q, want %d:\n%s%s", got, name, want, out, stderr)
	}
}

func TestTenantsCheckModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("modes say nothing there")
	}
	folder, _, _ := makeTenant(t, t.TempDir(), "a")
	for _, c := range []struct {
		file   string
		mode   os.FileMode
		status int
		want   string
	}{
		{"server.key", 0o644, 0, "everybody may read"},
		{"agents-ca.crt", 0o666, 1, "everybody may write"},
		{"", 0o777, 1, "everybody may write"},
	} {
		testutil.NoError(t, os.Chmod(filepath.Join(folder, c.file), c.mode))
		expect(t, c.status, c.want, "tenants", "check", folder)
	}
	expect(t, 1, "does not exist", "tenants", "check", folder+"/none")
	expect(t, 1, `"step": "modes"`, "tenants", "check", folder, "-o", "json")
}

// adminOf serves an admin API that has these tenants.
func adminOf(t *testing.T, tenants ...admin.Tenant) (address string) {
	t.Helper()
	server := httptest.NewServer(admin.Handler(http.NewServeMux(), admin.Source{
		Component: "konnectivity-server", Table: admin.NewTable(), Tenants: func() []admin.Tenant { return slices.Clone(tenants) },
	}))
	t.Cleanup(server.Close)
	return server.Listener.Addr().String()
}

func TestTenantsList(t *testing.T) {
	many := []admin.Tenant{
		{Name: "quiet", State: "serving", Ready: true, ServerNames: []string{"quiet.example.com"}, Agents: 2, Clients: 7},
		{Name: "alone", State: "serving", Reason: "no agent is connected"},
		{Name: "wrong", State: "broken", Error: "tenant.yaml: serverNames: \x1b[31mevil", ServerNames: []string{"w.example.com"}},
	}
	for i := range 1000 {
		many = append(many, admin.Tenant{Name: fmt.Sprintf("z%04d", i), State: "serving", Ready: true})
	}
	address := adminOf(t, many...)
	status, out, stderr := konnectivity("tenants", "list", address)
	lines := strings.Split(strings.TrimSpace(out), "\n")
	testutil.Requires(t, status == 0 && len(lines) == 1+1003+2 && strings.HasPrefix(strings.TrimSpace(lines[1]), "wrong") &&
		strings.HasPrefix(strings.TrimSpace(lines[2]), "alone"), "%d, %d lines: %.600s%s", status, len(lines), out, stderr)
	for _, want := range []string{"broken: tenant.yaml: serverNames:", "not ready: no agent is connected", "quiet.example.com", "1003 of 1003 tenants"} {
		testutil.Contains(t, out, want, "the list")
	}
	testutil.Holds(t, !strings.Contains(out, "\x1b"), "a control character of a tenant reached the terminal")
	expect(t, 0, "1 of 1003 tenants", "tenants", "list", address, "--filter=quiet", "--sort=name")
	_, out, _ = konnectivity("tenants", "list", address, "--limit=2", "-o", "json")
	testutil.Holds(t, strings.Count(out, `"name":`) == 2 && strings.Contains(out, `"matched": 1003`), "%v", out)
	expect(t, 1, "127.0.0.1:1", "tenants", "list", "127.0.0.1:1")
	status, out, stderr = konnectivity("tenants", "list", "127.0.0.1:1", "--output=json")
	var answer struct {
		Error string
		Items []any
	}
	testutil.NoError(t, json.Unmarshal([]byte(out), &answer))
	testutil.Holds(t, status == 1 && answer.Items != nil && answer.Error == "no answer from the admin API: connection refused" &&
		strings.Contains(stderr, "127.0.0.1:1: "+answer.Error), "%d, %q, %q", status, out, stderr)
}

func TestTenantsCheckAsksTheServer(t *testing.T) {
	folder, _, _ := makeTenant(t, t.TempDir(), "a")
	digest := testutil.Must(tenant.Load("a", folder))(t).Digest()
	for want, tenants := range map[string][]admin.Tenant{
		"✔ server: 1 agent and 2 clients are connected":           {{Name: "a", State: "serving", Ready: true, Agents: 1, Clients: 2, Digest: digest}},
		"✔ server: 3 agents and 0 clients are connected":          {{Name: "a", State: "serving", Ready: true, Agents: 3}},
		"✘ server: it serves other files than these":              {{Name: "a", State: "serving", Ready: true, Digest: "other"}},
		"✘ server: it has no tenant a":                            {{Name: "b", State: "serving", Ready: true}},
		"✘ server: it refuses the tenant's peers: why":            {{Name: "a", State: "broken", Error: "why"}},
		"✘ server: it serves the tenant as it was before: why":    {{Name: "a", State: "stale", Error: "why", Ready: true}},
		"✘ server: it cannot reach the cluster: no agent is here": {{Name: "a", State: "serving", Reason: "no agent is here"}},
	} {
		status, out, _ := konnectivity("tenants", "check", folder, "--server-admin="+adminOf(t, tenants...))
		testutil.Holds(t, strings.Contains(out, want) && (status == 0) == strings.HasPrefix(want, "✔"),
			"%d, want %q:\n%s", status, want, out)
	}
	expect(t, 1, "no answer", "tenants", "check", folder, "--server-admin=127.0.0.1:1")
}

// An admin port over TLS is asked with the server's CA and a certificate; errors are
// reported.
func TestStatusOverTLS(t *testing.T) {
	dir := t.TempDir()
	ca := testutil.Must(pki.NewCA("ca"))(t)
	other := testutil.Must(pki.NewCA("other"))(t)
	issue := func(l pki.Leaf) pki.Pair {
		return testutil.Must(ca.Issue(l))(t)
	}
	client := issue(pki.Leaf{CommonName: "operator", Client: true})
	for name, text := range map[string][]byte{"ca": ca.CertPEM, "other": other.CertPEM, "crt": client.CertPEM, "key": client.KeyPEM} {
		testutil.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o600))
	}
	server := httptest.NewUnstartedServer(admin.Handler(http.NewServeMux(), admin.Source{
		Component: "konnectivity-server", Table: admin.NewTable(), Tenants: func() []admin.Tenant { return []admin.Tenant{{Name: "a", State: "serving", Ready: true, Agents: 1}} },
		Login: func(r *http.Request) (admin.Reader, bool) {
			return admin.Reader{Proven: true}, len(r.TLS.PeerCertificates) > 0
		},
	}))
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{issue(pki.Leaf{CommonName: "admin", DNS: []string{"admin.example"}, IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true}).TLS()},
		ClientCAs:    ca.Pool(), ClientAuth: tls.VerifyClientCertIfGiven,
	}
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	at := server.Listener.Addr().String()
	proxy := testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = http.ReadRequest(bufio.NewReader(c))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\n\r\n")
	})
	folder, _, _ := makeTenant(t, t.TempDir(), "a")
	own := []string{"--ca-cert-path=" + dir + "/ca", "--tls-cert-path=" + dir + "/crt", "--tls-key-path=" + dir + "/key"}
	for _, c := range []struct {
		args   []string
		status int
		want   string
	}{
		{append([]string{"status", "https://" + at}, own...), 0, "konnectivity-server"},
		{append([]string{"status", "https://" + at, "--server-name=admin.example"}, own...), 0, "konnectivity-server"},
		{append([]string{"status", "https://" + at, "--server-name=else.example"}, own...), 1, "not for else.example"},
		{append([]string{"tenants", "list", "https://" + at}, own...), 0, "1 of 1 tenant"},
		{append([]string{"tenants", "check", folder, "--server-admin=https://" + at}, own...), 0, "✔ server: 1 agent"},
		{append([]string{"dial", "-v", "--via=http://" + proxy, "--server-admin=https://" + at, at}, own...), 0, "https://" + at + ": it does not know the connection"},
		{append([]string{"dial", "-v", "--via=direct", "--server-admin=https://" + at, at}, own...), 0, "https://" + at + ": which of its connections this is cannot be told"},
		{append([]string{"status", at}, own...), 1, "it speaks TLS: ask https://" + at},
		{[]string{"status", "https://" + at, own[0]}, 1, "a certificate that it knows: give --token-file, or --tls-cert-path"},
		{[]string{"status", "https://" + at, "--ca-cert-path=" + dir + "/other"}, 1, "not in --ca-cert-path=" + dir + "/other"},
		{[]string{"status", "https://" + at}, 1, "not in the system's CAs, which count without --ca-cert-path"},
		{[]string{"status", "https://" + at, "--ca-cert-path=" + dir + "/none"}, 1, dir + "/none"},
		{[]string{"status", "http://" + at}, 2, "want HOST:PORT or https://HOST:PORT"},
	} {
		status, out, stderr := konnectivity(c.args...)
		if said := strings.Join(strings.Fields(out+stderr), " "); status != c.status || !strings.Contains(said, c.want) {
			t.Errorf("%q: %d, want %d and %q: %s", c.args, status, c.status, c.want, said)
		}
	}
}

// Tenants of one CA are told apart by what their certificates say, and may have ports
// and sockets of their own.
func TestTenantsMakeByIdentity(t *testing.T) {
	dir := t.TempDir()
	_, shared, _ := makeTenant(t, dir, "a")
	var made []*tenant.Spec
	for i, name := range []string{"b", "c"} {
		socket := filepath.Join(dir, name+".socket")
		folder, cluster, said := makeTenant(t, dir, name, "--from="+shared, "--by-identity",
			fmt.Sprint("--agent-port=", 9000+i), fmt.Sprint("--client-port=", 9100+i), "--client-socket="+socket)
		tenant := testutil.Must(tenant.Load(name, folder))(t)
		if !tenant.ByCertificate || strings.Join(tenant.Agents.Only, " ") != "spiffe://"+name+"/konnectivity/agent" {
			t.Errorf("it has the identities %q", tenant.Agents.Only)
		}
		if tenant.Agents.Recheck([]*x509.Certificate{load(t, cluster, "agent")}) != nil || tenant.Clients.Recheck([]*x509.Certificate{load(t, cluster, "client")}) != nil {
			t.Error("its own certificates are not trusted")
		}
		testutil.Fails(t, tenant.Agents.Recheck([]*x509.Certificate{load(t, shared, "agent")}), "that of another")
		for _, want := range []string{fmt.Sprintf("--proxy-server-port=%d", 9000+i), fmt.Sprintf("--konnectivity-port=%d", 9100+i), "udsName: " + socket + "\n"} {
			testutil.Contains(t, said, want, "what is said")
		}
		made = append(made, tenant)
	}
	testutil.NoError(t, made[1].Conflict(made[0]))
	for _, want := range []string{"clients on port 9101", "clients on " + filepath.Join(dir, "c.socket"), "spiffe://c/konnectivity/agent"} {
		expect(t, 0, want, "tenants", "check", filepath.Join(dir, "tenants", "c"))
	}
}
