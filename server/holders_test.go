package server

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/tenant"
)

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
			if code != 200 || strings.Contains(body, other.name) || path != "/" && !strings.Contains(body, c.name) {
				t.Errorf("%s asks %s: %d %s", c.name, path, code, body)
			}
		}
		for path, want := range map[string]int{"/api/v1/status?tenant=" + other.name: 404, "/debug/pprof/": 403} {
			if code, body := own.get(path, ""); code != want {
				t.Errorf("%s asks %s: %d %s", c.name, path, code, body)
			}
		}
	}
	all := s.holder(operators, issue(t, operators, pki.Leaf{CommonName: "operator", Client: true}))
	if code, body := all.get("/api/v1/tenants", ""); code != 200 || !strings.Contains(body, red.name) || !strings.Contains(body, blue.name) {
		t.Errorf("the operator: %d %s", code, body)
	}
	if code, body := s.holder(operators).get("/api/v1/status", ""); code != 401 || !strings.Contains(body, "certificate") {
		t.Errorf("nobody: %d %s", code, body)
	}
	stranger := testutil.Must(pki.NewCA("ca"))(t)
	for what, cert := range map[string]tls.Certificate{
		"a stranger":          issue(t, stranger, pki.Leaf{CommonName: "peer", Client: true}),
		"an agent of red's":   issue(t, red.ca, pki.Leaf{CommonName: "peer", Client: true, Holder: pki.Holder{Role: pki.RoleAgent, TrustDomain: pki.DefaultTrustDomain}}),
		"a server of red's":   issue(t, red.ca, pki.Leaf{CommonName: "peer", Server: true}),
		"a server's own CA's": issue(t, operators, pki.Leaf{CommonName: "peer", Server: true}),
	} {
		if code, body := s.holder(operators, cert).get("/api/v1/status", tokenOf("anybody")); code != 0 {
			t.Errorf("%s is let in: %d %s", what, code, body)
		}
	}
	if code, _ := (reader{s, ""}).get("/api/v1/status"); code != 400 {
		t.Errorf("without TLS: %d", code)
	}
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
		if code, body := s.holder(operators, c.certs...).get("/api/v1/status", c.token); code != c.code || !strings.Contains(body, c.shows) {
			t.Errorf("%s: %d %s", what, code, body)
		}
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
		if code, body := h.get("/api/v1/status", ""); code != want || code == 200 && !strings.Contains(body, `"tenant":"crimson"`) {
			t.Errorf("%s: %d %s", what, code, body)
		}
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
	if resp.StatusCode != 200 || asked {
		t.Errorf("%s; a certificate was asked for: %v", resp.Status, asked)
	}
}

// No CA is named to whoever comes: it would tell of a tenant.
func TestTheAdminPortNamesNoCA(t *testing.T) {
	operators, setting := adminCA(t, true)
	s := startSharers(t, setting)
	s.add("crimson", "")
	named := -1
	conn, err := tls.Dial("tcp", s.admin, &tls.Config{RootCAs: operators.Pool(), ServerName: "admin.example", MaxVersion: tls.VersionTLS12,
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			named = len(info.AcceptableCAs)
			return new(tls.Certificate), nil
		}})
	testutil.NoError(t, err)
	defer conn.Close()
	testutil.Equal(t, named, 0, "CAs are named")
}
