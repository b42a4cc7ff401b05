package pki_test

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

func bearing(t testing.TB, uris ...string) *x509.Certificate {
	cert := new(x509.Certificate)
	cert.Subject.CommonName = "peer"
	for _, text := range uris {
		uri := testutil.Must(url.Parse(text))(t)
		cert.URIs = append(cert.URIs, uri)
	}
	return cert
}

func TestHolderOf(t *testing.T) {
	agent := pki.Holder{Role: pki.RoleAgent, TrustDomain: "cluster.local"}
	none := pki.Holder{}
	long := strings.Repeat("a", 256)
	for _, c := range []struct {
		uris []string
		want pki.Holder
		err  bool
	}{
		{nil, none, false},
		{[]string{"spiffe://cluster.local/konnectivity/agent"}, agent, false},
		{[]string{"SPIFFE://cluster.local/konnectivity/agent"}, agent, false}, // schemes have no case (RFC 3986 §3.1)
		{[]string{"spiffe://prod-1.example_x/konnectivity/client"}, pki.Holder{Role: pki.RoleClient, TrustDomain: "prod-1.example_x"}, false},
		{[]string{"https://example.com/konnectivity/agent", "spiffe://cluster.local/ns/x/sa/y", "urn:uuid:1", "spiffe://cluster.local/konnectivity/agent"}, agent, false},
		{[]string{"spiffe://cluster.local/ns/konnectivity/agent"}, none, false},
		{[]string{"spiffe://cluster.local/konnectivity-2/agent"}, none, false},
		{[]string{"spiffe://konnectivity/agent"}, none, false}, // a trust domain of that name

		{[]string{"spiffe://cluster.local/konnectivity/agent", "spiffe://cluster.local/konnectivity/agent"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/agent", "spiffe://cluster.local/konnectivity/client"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/agent", "spiffe://cluster.local/konnectivity/x"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/operator"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/Agent"}, none, true},
		{[]string{"spiffe://cluster.local/Konnectivity/agent"}, none, true},
		{[]string{"spiffe://Cluster.local/konnectivity/agent"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/agent/"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/agent/node-1"}, none, true},
		{[]string{"spiffe://cluster.local//konnectivity/agent"}, none, true},
		{[]string{"spiffe://cluster.local/./konnectivity/agent"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/%61gent"}, none, true},
		{[]string{"spiffe://cluster.local/%6bonnectivity/agent"}, none, true},
		{[]string{"spiffe://cluster.local/%256bonnectivity/agent"}, none, true},
		{[]string{"spiffe://cluster.local/%2fkonnectivity/agent"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/agent?x=1"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/agent?"}, none, true},
		{[]string{"spiffe://cluster.local/konnectivity/agent#x"}, none, true},
		{[]string{"spiffe://user@cluster.local/konnectivity/agent"}, none, true},
		{[]string{"spiffe://cluster.local:1/konnectivity/agent"}, none, true},
		{[]string{"spiffe:///konnectivity/agent"}, none, true},
		{[]string{"spiffe:/konnectivity/agent"}, none, true},
		{[]string{"spiffe:konnectivity/agent"}, none, true},
		{[]string{"spiffe://" + long + "/konnectivity/agent"}, none, true},
	} {
		got, err := pki.HolderOf(bearing(t, c.uris...))
		testutil.Holds(t, got == c.want && (err != nil) == c.err, "%q: %v, %v", c.uris, got, err)
	}
}

func TestRoleRule(t *testing.T) {
	const agent, elsewhere = "spiffe://cluster.local/konnectivity/agent", "spiffe://other.test/konnectivity/agent"
	for _, c := range []struct {
		uri  string
		rule pki.RoleRule
		says string // "": it is taken
	}{
		{agent, pki.RoleRule{Want: pki.RoleAgent}, ""},
		{agent, pki.RoleRule{Want: pki.RoleAgent, Require: true, TrustDomain: "cluster.local"}, ""},
		{elsewhere, pki.RoleRule{Want: pki.RoleAgent, Require: true}, ""},
		{"", pki.RoleRule{Want: pki.RoleAgent, TrustDomain: "cluster.local"}, ""},
		{agent, pki.RoleRule{Want: pki.RoleClient}, `the certificate of "peer" has the role agent, and here only the role client is accepted`},
		{elsewhere, pki.RoleRule{Want: pki.RoleAgent, TrustDomain: "cluster.local"}, `is of the trust domain "other.test"`},
		{"", pki.RoleRule{Want: pki.RoleAgent, Require: true}, "has no role, and --require-peer-role wants the role agent"},
		{agent + "s", pki.RoleRule{Want: pki.RoleAgent}, "is not valid: want spiffe://TRUST-DOMAIN/konnectivity/"},
	} {
		var uris []string
		if c.uri != "" {
			uris = []string{c.uri}
		}
		testutil.ErrorSays(t, c.rule.Check(bearing(t, uris...)), c.says, "%q under %+v", c.uri, c.rule)
	}
}

// A role survives being signed and parsed again.
func TestIssuedRole(t *testing.T) {
	want := pki.Holder{Role: pki.RoleServer, TrustDomain: "example.test"}
	pair := issue(t, newCA(t), pki.Leaf{CommonName: "s", Server: true, Holder: want})
	testutil.Equal(t, testutil.Must(pki.HolderOf(pair.TLS().Leaf))(t), want, "the holder")
	got, err := pki.HolderOf(issue(t, newCA(t), pki.Leaf{CommonName: "s", Server: true}).TLS().Leaf)
	testutil.Holds(t, got == (pki.Holder{}) && err == nil, "without a role: %v, %v", got, err)
}

// Whatever is taken for a role is spelled in the one way there is, and whatever
// comes close to one is not taken for none.
func FuzzHolderOf(f *testing.F) {
	for _, seed := range []string{"spiffe://cluster.local/konnectivity/agent", "SPIFFE://a/konnectivity/%61gent", "spiffe:konnectivity/agent", "https://x/konnectivity/agent", "spiffe://a//konnectivity/client?#", "spiffe://0#/konneCtivitY/", "spiffe://0?x/konnectivity/agent"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		uri, err := url.Parse(text)
		if err != nil {
			return
		}
		h, err := pki.HolderOf(&x509.Certificate{URIs: []*url.URL{uri}})
		testutil.Holds(t, h.Role == "" || err == nil && h.URI().String() == uri.String() &&
			pki.ValidTrustDomain(h.TrustDomain), "%q: taken for %v, %v", text, h, err)
		plain := strings.ToLower(uri.String())
		if h.Role == "" && err == nil && strings.HasPrefix(plain, "spiffe://") && strings.Contains(plain[9:], "/konnectivity/") &&
			strings.HasPrefix(plain[9+strings.IndexByte(plain[9:], '/'):], "/konnectivity/") {
			t.Errorf("%q: taken for none", text)
		}
	})
}
