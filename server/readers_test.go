package server

import (
	"crypto/tls"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/admin"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/tenant"
	"konnectivity/tunnel/link"
)

// reader asks the admin port with a token; "" is none.
type reader struct {
	of    *sharers
	token string
}

func (r reader) get(path string) (int, string) {
	r.of.t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	code, header, body := fetch(r.of.t, client, "http://"+r.of.admin+path, r.token)
	testutil.Requires(r.of.t, code != 0, "%v", body)
	return code, fmt.Sprint(header) + body
}

// tokenOf is a token that tells whose it is.
func tokenOf(name string) string { return strings.Repeat(name+"-secret", 8) }

// crowded has a cluster do all that shows anywhere, under names of its own, and
// returns these.
func (c *sharer) crowded() []string {
	t := c.of.t
	t.Helper()
	c.write("bounds: {dialsPerSecond: 1000}", [2]string{tenant.ReaderFile, tokenOf(c.name) + "\n"})
	testutil.Must(c.agentLink(link.Hello{Role: link.RoleAgent, ID: c.name + "-agent", Identifiers: "host=" + c.name + "-host.example&default-route=true", Software: c.name + "-software"}))(t)
	testutil.Must(c.agentGRPC(agentHello{id: c.name + "-old", identifiers: "ipv4=10.0.0.1"}))(t)
	c.has(2)
	lost := testutil.Must(c.agentLink(link.Hello{Role: link.RoleAgent, ID: c.name + "-lost"}))(t)
	c.has(3)
	lost.Close()
	c.has(2)
	names := []string{c.name}
	for _, kind := range sharedClients {
		c.reaches(kind, c.name+"-target-"+kind+":443")
	}
	if conn, err := c.dial("connect", c.name+"-no-address"); err == nil {
		conn.Close()
	}
	c.of.eventually(c.name+" shows", func() bool {
		own := ask[admin.Page[admin.Connection]](c.of.rig, "connections?tenant="+c.name)
		return own.Matched == len(sharedClients) && ask[admin.Page[admin.Failure]](c.of.rig, "failures?tenant="+c.name).Matched > 0
	})
	for _, conn := range ask[admin.Page[admin.Connection]](c.of.rig, "connections?tenant="+c.name).Items {
		names = append(names, conn.ID, conn.Source)
	}
	for _, p := range ask[admin.Page[admin.Peer]](c.of.rig, "peers?tenant="+c.name).Items {
		names = append(names, p.Remote)
	}
	return names
}

// shown is what the operator is shown of a cluster.
func (c *sharer) shown() (all string) {
	for _, list := range []string{"connections", "peers", "failures"} {
		_, body := reader{c.of, ""}.get("/api/v1/" + list + "?tenant=" + c.name)
		all += body
	}
	return all
}

// spoil writes other server names.
func (c *sharer) spoil(names string) {
	testutil.NoError(c.of.t, os.WriteFile(filepath.Join(c.of.folder, c.name, tenant.SettingsFile), []byte("serverNames: ["+names+"]\n"), 0o644))
	c.of.dir.Look()
}

// Whatever a tenant's reader asks for, by any path and parameters, nothing of
// another tenant is in the answer.
func TestATenantsReaderSeesItAlone(t *testing.T) {
	log, said := logtest.NewNullLogger()
	log.SetLevel(logrus.DebugLevel)
	s := startSharers(t, func(o *Options) { o.Log, o.Profiles = log, true })
	red, blue := s.add("crimson", ""), s.add("azure", "")
	secrets := map[*sharer][]string{red: red.crowded(), blue: blue.crowded()}
	// Two that come to different ports may have one address, which is no secret then.
	ofRed, ofBlue := red.shown(), blue.shown()
	common := func(name string) bool {
		return strings.HasPrefix(name, "127.0.0.1:") && strings.Contains(ofRed, name) && strings.Contains(ofBlue, name)
	}
	secrets[red], secrets[blue] = slices.DeleteFunc(secrets[red], common), slices.DeleteFunc(secrets[blue], common)
	// A folder that wants another's name says whose it is, to the operator alone.
	blue.spoil("azure.example, shared.example")
	red.spoil("crimson.example, shared.example")
	all := ask[admin.Page[admin.Tenant]](s.rig, "tenants?tenant=crimson").Items
	testutil.Holds(t, len(all) == 1 && strings.Contains(all[0].Error, `the tenant "azure"`), "%+v", all)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	of := func(choices ...string) string { return choices[random.IntN(len(choices))] }
	for c, other := range map[*sharer]*sharer{red: blue, blue: red} {
		own := reader{s, tokenOf(c.name)}
		paths := []string{"/", "/page.js", "/metrics", "/api/v1/", "/api/v1/status", "/api/v1/history", "/nowhere", "/debug/pprof/", "//metrics", "/api/v1/../v1/tenants", "/debug/pprof/../../metrics"}
		for _, list := range []string{"connections", "peers?role=client,server,agent,frontend,direct,destination", "failures", "tenants", "peers"} {
			paths = append(paths, "/api/v1/"+list)
		}
		for range 60 {
			v := url.Values{}
			for _, name := range []string{"tenant", "filter", "sort", "state", "role", "limit", "offset"} {
				if random.IntN(2) == 0 {
					v.Add(name, of("", other.name, c.name, "-state", "-rate", "since", "serving", "broken", "frontend", "agent", "0", "1", "1000", "others", "*", "\x00"))
				}
			}
			paths = append(paths, "/api/v1/"+of("status", "connections", "peers", "failures", "tenants", "history")+"?"+v.Encode())
		}
		seen := ""
		for _, path := range paths {
			code, body := own.get(path)
			for _, secret := range secrets[other] {
				testutil.Holds(t, !strings.Contains(body, secret),
					"%s's reader asks %s and reads %q of %s: %d %s", c.name, path, secret, other.name, code, body)
			}
			if code == http.StatusOK {
				seen += body
			}
			testutil.Holds(t, !strings.HasPrefix(path, "/debug") || strings.Contains(path, "..") ||
				code == http.StatusForbidden, "%s: %d", path, code)
		}
		for _, shown := range append(secrets[c], c.name+"-agent", c.name+"-target-grpc:443", `tenant="`+c.name+`"`, `"total":1,"matched":1,`) {
			testutil.Contains(t, seen, shown, "%s's reader does not see", c.name)
		}
		testutil.Holds(t, !strings.Contains(seen, "process_") && !strings.Contains(seen, "buffered_bytes"),
			"%s's reader sees the process", c.name)
		code, _ := own.get("/api/v1/status?tenant=" + other.name)
		testutil.Holds(t, code == http.StatusNotFound, "the status of another: %d", code)
	}
	for _, line := range said.AllEntries() {
		text, _ := line.String()
		testutil.Holds(t, !strings.Contains(text, "-secret"), "the log has a token: %s", text)
	}
}

// What the page counts on is there of a tenant that never was good, too.
func TestABrokenTenantHasNoNull(t *testing.T) {
	s := startSharers(t)
	testutil.NoError(t, os.Mkdir(filepath.Join(s.folder, "empty"), 0o755))
	s.dir.Look()
	code, body := reader{s, ""}.get("/api/v1/tenants")
	testutil.Holds(t, code == http.StatusOK && strings.Contains(body, `"name":"empty","state":"broken"`) &&
		!strings.Contains(body, "null"), "%d %s", code, body)
}

// The digest of a tenant tells which of its files are served: those before, until they are read.
func TestATenantsDigestIsOfWhatIsServed(t *testing.T) {
	s := startSharers(t)
	c := s.addServed("red", "") // none is listed before
	files := func() string { return testutil.Must(tenant.Load("red", filepath.Join(s.folder, "red")))(t).Digest() }
	was := files()
	testutil.Equal(t, c.listed().Digest, was, "the digest")
	c.write("bounds: {connections: 7}\n")
	now := files()
	testutil.Holds(t, now != was, "the digest does not change with the files")
	testutil.Equal(t, c.listed().Digest, now, "the digest after a change")
	c.write("nonsense: 1\n")
	testutil.Equal(t, c.listed().Digest, now, "the digest of a tenant that is served as before")
}

// status is that of the whole API for a reader.
func (r reader) status() int {
	code, _ := r.get("/api/v1/status")
	return code
}

// Tokens come, change and go while the server runs; what is no token of anybody
// is refused, and without one all is as it was.
func TestReadersTokens(t *testing.T) {
	s := startSharers(t)
	c := s.add("red", "")
	other := s.add("blue", "")
	first, second := reader{s, tokenOf("first")}, reader{s, tokenOf("second")}
	check := func(what string, r reader, want int) {
		t.Helper()
		testutil.Equal(t, r.status(), want, "%s", what)
	}
	check("nobody's token", first, 401)
	check("no token", reader{s, ""}, 200)
	c.write("", [2]string{tenant.ReaderFile, first.token})
	check("the tenant's token", first, 200)
	check("a part of it", reader{s, first.token[:len(first.token)-1]}, 401)
	c.write("", [2]string{tenant.ReaderFile, second.token + "\n"})
	check("the one before", first, 401)
	check("the new one", second, 200)
	c.write("", [2]string{tenant.ReaderFile, "short"})
	check("the last good one", second, 200)
	if states := ask[admin.Page[admin.Tenant]](s.rig, "tenants?tenant=red").Items; len(states) != 1 || states[0].State != tenant.StateStale || !strings.HasPrefix(states[0].Error, "reader-token: the token has 5 characters") {
		t.Errorf("%+v", states)
	}
	c.write("", [2]string{tenant.ReaderFile, second.token})
	other.write("", [2]string{tenant.ReaderFile, second.token})
	check("a token that two have", second, 401)
	other.write("", [2]string{tenant.ReaderFile, first.token})
	check("a token that one has again", second, 200)
	_, body := second.get("/api/v1/status")
	testutil.Holds(t, strings.Contains(body, `"tenant":"red"`), "%v", body)
	_, body = (reader{s, ""}).get("/api/v1/status?tenant=blue")
	testutil.Holds(t, strings.Contains(body, `"tenant":"blue"`), "%v", body)
}

// With a token of the operator's, nothing is shown without one, under any name.
func TestTheOperatorsToken(t *testing.T) {
	want := testutil.Must(admin.ParseToken([]byte(tokenOf("operator"))))(t)
	s := startSharers(t, func(o *Options) { o.AdminToken, o.Profiles = func() admin.TokenDigest { return want }, true })
	c := s.add("red", "")
	c.write("", [2]string{tenant.ReaderFile, tokenOf("red")})
	for _, path := range []string{"/", "/page.css", "/metrics", "/api/v1/status", "/api/v1/tenants", "/debug/pprof/", "/nowhere"} {
		for token, code := range map[string]int{"": 401, tokenOf("nobody"): 401} {
			if got, body := (reader{s, token}).get(path); got != code || !strings.Contains(body, "Bearer") || !strings.Contains(body, "Basic") {
				t.Errorf("%s with %q: %d %s", path, token, got, body)
			}
		}
		got, _ := (reader{s, tokenOf("operator")}).get(path)
		testutil.Holds(t, got != 401 && got != 403, "the operator asks %s: %d", path, got)
	}
	if _, body := (reader{s, tokenOf("operator")}).get("/metrics"); !strings.Contains(body, "_draining 0") || !strings.Contains(body, `tenant="red"`) {
		t.Error("the operator does not see all metrics")
	}
	req, _ := http.NewRequest(http.MethodGet, "http://"+s.admin+"/api/v1/status", nil)
	req.Host = "status.example.com"
	req.SetBasicAuth("anybody", tokenOf("red"))
	resp := testutil.Must(http.DefaultTransport.RoundTrip(req))(t)
	defer http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	defer resp.Body.Close()
	testutil.Equal(t, resp.StatusCode, 200, "a browser at a name of the operator's choice")
}

// adminCA has the admin port speak TLS, with a certificate of a new CA. Whoever
// has one for clients of it is the operator, if told so.
func adminCA(t *testing.T, operators bool) (*pki.CA, func(*Options)) {
	t.Helper()
	ca := testutil.Must(pki.NewCA("ca"))(t)
	source := sourceOf(t, ca, "admin.example", operators, tlsreload.Options{Name: "admin", Peer: pki.RoleRule{Want: pki.RoleClient}.Check})
	return ca, func(o *Options) {
		o.AdminTLS = source.ServerFor
		if operators {
			o.AdminTrusts = source.Trusts
		}
	}
}

// holder asks the admin port over TLS, with a certificate or none.
type holder struct {
	of     *sharers
	client *http.Client
}

func (s *sharers) holder(admin *pki.CA, certs ...tls.Certificate) holder {
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: admin.Pool(), ServerName: "admin.example", Certificates: certs}}
	s.t.Cleanup(transport.CloseIdleConnections)
	return holder{s, &http.Client{Transport: transport, Timeout: 20 * time.Second}}
}

// get returns what comes, with status 0 if the handshake fails.
func (h holder) get(path, token string) (int, string) {
	h.of.t.Helper()
	code, _, body := fetch(h.of.t, h.client, "https://"+h.of.admin+path, token)
	return code, body
}

// issue makes a certificate of a CA.
func issue(t *testing.T, ca *pki.CA, l pki.Leaf) tls.Certificate {
	t.Helper()
	return testutil.Must(ca.Issue(l))(t).TLS()
}

// Whoever has a certificate of a cluster's clients sees that cluster alone, and
// whoever has the operator's sees all. All CAs have the same name.
func TestACertificateShowsItsTenantAlone(t *testing.T) {
	operators, setting := adminCA(t, true)
	s := startSharers(t, setting, func(o *Options) { o.Profiles = true })
	red, blue := s.add("crimson", ""), s.add("azure", told)
	for c, other := range map[*sharer]*sharer{red: blue, blue: red} {
		own := s.holder(operators, c.cert)
		for _, path := range []string{"/api/v1/status", "/api/v1/tenants", "/metrics", "/"} {
			code, body := own.get(path, "")
			testutil.Holds(t, code == 200 && !strings.Contains(body, other.name) &&
				(path == "/" || strings.Contains(body, c.name)), "%s asks %s: %d %s", c.name, path, code, body)
		}
		for path, want := range map[string]int{"/api/v1/status?tenant=" + other.name: 404, "/debug/pprof/": 403} {
			code, body := own.get(path, "")
			testutil.Holds(t, code == want, "%s asks %s: %d %s", c.name, path, code, body)
		}
	}
	all := s.holder(operators, issue(t, operators, pki.Leaf{CommonName: "operator", Client: true}))
	if code, body := all.get("/api/v1/tenants", ""); code != 200 || !strings.Contains(body, red.name) || !strings.Contains(body, blue.name) {
		t.Errorf("the operator: %d %s", code, body)
	}
	code, body := s.holder(operators).get("/api/v1/status", "")
	testutil.Holds(t, code == 401 && strings.Contains(body, "certificate"), "nobody: %d %s", code, body)
	stranger := testutil.Must(pki.NewCA("ca"))(t)
	for what, cert := range map[string]tls.Certificate{
		"a stranger":          issue(t, stranger, pki.Leaf{CommonName: "peer", Client: true}),
		"an agent of red's":   issue(t, red.ca, pki.Leaf{CommonName: "peer", Client: true, Holder: pki.Holder{Role: pki.RoleAgent, TrustDomain: pki.DefaultTrustDomain}}),
		"a server of red's":   issue(t, red.ca, pki.Leaf{CommonName: "peer", Server: true}),
		"a server's own CA's": issue(t, operators, pki.Leaf{CommonName: "peer", Server: true}),
	} {
		code, body := s.holder(operators, cert).get("/api/v1/status", tokenOf("anybody"))
		testutil.Holds(t, code == 0, "%s is let in: %d %s", what, code, body)
	}
	code, _ = (reader{s, ""}).get("/api/v1/status")
	testutil.Holds(t, code == 400, "without TLS: %d", code)
}

// A token counts before a certificate, so whoever has both chooses, and over TLS
// without a certificate.
func TestATokenCountsBeforeACertificate(t *testing.T) {
	operators, setting := adminCA(t, true)
	operator := testutil.Must(admin.ParseToken([]byte(tokenOf("operator"))))(t)
	s := startSharers(t, setting, func(o *Options) { o.AdminToken = func() admin.TokenDigest { return operator } })
	red, blue := s.add("crimson", ""), s.add("azure", "")
	blue.write("", [2]string{tenant.ReaderFile, tokenOf("azure")})
	for what, c := range map[string]struct {
		certs []tls.Certificate
		token string
		code  int
		shows string
	}{
		"a tenant's token":                        {nil, tokenOf("azure"), 200, `"tenant":"azure"`},
		"a tenant's token, another's certificate": {[]tls.Certificate{red.cert}, tokenOf("azure"), 200, `"tenant":"azure"`},
		"the operator's token, and a certificate": {[]tls.Certificate{red.cert}, tokenOf("operator"), 200, `"tenants":`},
		"nobody's token, and a certificate":       {[]tls.Certificate{red.cert}, tokenOf("nobody"), 401, ""},
		"neither":                                 {nil, "", 401, ""},
		"a certificate":                           {[]tls.Certificate{red.cert}, "", 200, `"tenant":"crimson"`},
	} {
		code, body := s.holder(operators, c.certs...).get("/api/v1/status", c.token)
		testutil.Holds(t, code == c.code && strings.Contains(body, c.shows), "%s: %d %s", what, code, body)
	}
}

// A CA that is taken away, or that another tenant has as well, shows nothing any
// more, over connections that are open as well.
func TestACAThatIsGoneShowsNothing(t *testing.T) {
	operators, setting := adminCA(t, false)
	s := startSharers(t, setting)
	red, blue := s.add("crimson", ""), s.add("azure", "")
	own := s.holder(operators, red.cert)
	sees := func(what string, h holder, want int) {
		t.Helper()
		code, body := h.get("/api/v1/status", "")
		testutil.Holds(t, code == want && (code != 200 || strings.Contains(body, `"tenant":"crimson"`)), "%s: %d %s", what, code, body)
	}
	sees("at first", own, 200)
	ca := red.ca
	red.replaceCA("")
	sees("by a connection that is open", own, 401)
	sees("by another", s.holder(operators, red.cert), 0)
	red.ca = ca
	red.write("")
	sees("with the CA back", own, 200)
	of := blue.ca
	blue.ca = ca
	blue.write("")
	sees("with the CA two tenants'", own, 401)
	blue.ca = of
	blue.write("")
	sees("with the CA its own again", own, 200)
	if code, body := s.holder(operators).get("/api/v1/status", ""); code != 200 || strings.Contains(body, `"tenant":`) {
		t.Errorf("whoever shows nothing, where nothing is needed: %d %s", code, body)
	}
}

// Where no certificate tells anything, none is asked for.
func TestTLSAloneAsksForNoCertificate(t *testing.T) {
	admin, setting := adminCA(t, false)
	r := startServer(t, setting)
	asked := false
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: admin.Pool(), ServerName: "admin.example",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			asked = true
			return new(tls.Certificate), nil
		}}}
	resp := testutil.Must((&http.Client{Transport: transport}).Get("https://" + r.admin + "/api/v1/status"))(t)
	resp.Body.Close()
	testutil.Holds(t, resp.StatusCode == 200 && !asked, "%s; a certificate was asked for: %v", resp.Status, asked)
}
