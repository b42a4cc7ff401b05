package tenant

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestIdentitiesHaveOneSpelling(t *testing.T) {
	for text, want := range map[string]string{
		"spiffe://Fleet.example/Red/agent": "spiffe://fleet.example/Red/agent",
		"urn:red":                          "urn:red",
		"Red.Example.":                     "red.example",
		"CN=Red: the first":                "CN=Red: the first",
	} {
		testutil.Equal(t, testutil.Must(parseIdentity(text))(t), want, "%q", text)
	}
	for _, text := range []string{"", "CN=", ":x", "://x", "*.example", "10.0.0.1", "a b", "O=red", strings.Repeat("a.", 2000)} {
		got, err := parseIdentity(text)
		testutil.Holds(t, err != nil, "%q is taken as %q", text, got)
	}
}

// What a CA lets pass as a name of one kind is no identity of another.
func TestNoIdentityIsOneOfAnotherKind(t *testing.T) {
	cert := &x509.Certificate{
		Subject:  pkix.Name{CommonName: "cn.example"},
		DNSNames: []string{"spiffe://red/agent", "CN=red", "*.example", "10.0.0.1", "dns.example"},
		URIs:     []*url.URL{{Path: "uri.example"}, {Path: "CN=red"}, {Scheme: "spiffe", Host: "Blue", Path: "/agent"}},
	}
	got, want := NamesOf(cert), []string{"CN=cn.example", "dns.example", "spiffe://blue/agent"}
	testutil.Holds(t, slices.Equal(got, want), "got %q", got)
	cert.DNSNames = make([]string, maxIdentities)
	testutil.Equal(t, len(NamesOf(cert)), 0, "names of a certificate with too many")
}

// named is one of the signer's with a name in DNS.
func (s *signer) named(names ...string) []*x509.Certificate {
	cert := *s.peer(true)
	cert.DNSNames = names
	return []*x509.Certificate{&cert} // which is looked at, and whose signature is of Raw
}

// only is a tenant whose clients have one of these identities.
func (s *signer) only(name string, identities ...string) *Spec {
	t := s.tenant(name)
	t.Clients = t.Clients.narrow(identities)
	return t
}

func TestAnIdentityTellsTenantsOfOneCAApart(t *testing.T) {
	shared, own := newSigner(t), newSigner(t)
	tenants := map[string]*Spec{"own": own.tenant("own")}
	for i := range 200 {
		name := fmt.Sprint("t", i)
		tenants[name] = shared.only(name, name+".example", name+".two.example")
	}
	all := newIssuers(tenants, clientsOf)
	for _, c := range []struct {
		what  string
		chain []*x509.Certificate
		want  string
	}{
		{"one of t7", shared.named("t7.example"), "t7"},
		{"another of t7", shared.named("x.example", "T7.two.example."), "t7"},
		{"one of t7, with its CA", append(shared.named("t7.example"), shared.cert), "t7"},
		{"one of two", shared.named("t7.example", "t8.example"), `"t7" and "t8" both trust it`},
		{"one of many", shared.named("t1.example", "t2.example", "t3.example", "t4.example", "t5.example"), "more than 4 tenants"},
		{"one of nobody", shared.named("t200.example"), errNobodys.Error()},
		{"one without names", shared.named(), errNobodys.Error()},
		{"one of another CA", own.named("t7.example"), "own"},
	} {
		found, err := all.Find(c.chain)
		got := fmt.Sprint(err)
		if err == nil {
			got = found.Name
		}
		testutil.Holds(t, strings.Contains(got, c.want) && (err != nil || got == c.want),
			"%s: %s, want %s", c.what, got, c.want)
	}
}

// Also under a name, a certificate is admitted with the tenant's identities alone.
func TestACertificateOfTwoIsAdmittedByNone(t *testing.T) {
	shared, own := newSigner(t), newSigner(t)
	red, blue := shared.only("red", "red.example"), shared.only("blue", "blue.example")
	green := own.only("green", "blue.example") // the same identity of another CA
	table := &Table{owned: make(owners)}
	for _, tenant := range []*Spec{red, blue, green} {
		table.owned.add(tenant)
	}
	for _, c := range []struct {
		tenant *Spec
		names  []string
		want   string
	}{
		{red, []string{"red.example"}, ""},
		{red, []string{"red.example", "x.example"}, ""},
		{red, []string{"blue.example"}, "no identity"},
		{red, nil, "no identity"},
		{red, []string{"red.example", "blue.example"}, `two tenants, "red" and "blue"`},
		{green, []string{"blue.example", "red.example"}, ""},
	} {
		err := table.Admit(c.tenant, c.tenant.Clients, shared.named(c.names...)[0])
		testutil.ErrorSays(t, err, c.want, "%s: %q", c.tenant.Name, c.names)
	}
}

// So it is as a reader's, though it is a client of one tenant alone.
func TestACertificateOfTwoReadsNothing(t *testing.T) {
	shared := newSigner(t)
	red, blue := shared.only("red", "red.example"), shared.only("blue", "blue.example")
	blue.Agents = blue.Clients.narrow([]string{"agent.blue.example"})
	table := &Table{owned: make(owners), tenants: map[string]*Spec{"red": red, "blue": blue}}
	table.owned.add(red)
	table.owned.add(blue)
	got := table.ReaderBy(shared.named("red.example"))
	testutil.Holds(t, got == red, "a client of red reads %+v", got)
	got = table.ReaderBy(shared.named("red.example", "agent.blue.example"))
	testutil.Holds(t, got == nil, "a client of red that is an agent of blue reads %+v", got)
}

// identified are lines of tenant.yaml.
func identified(more string, identities ...string) string {
	list := "[" + strings.Join(identities, ", ") + "]"
	return fmt.Sprintf("identities: {agents: %s, clients: %s}\n%s", list, list, more)
}

// Of what two tenants claim, the first keeps it, and only the later one is told.
func TestAnIdentityIsOfOneTenant(t *testing.T) {
	const told = "byCertificate: true\n"
	for _, c := range []struct{ what, first, later, want string }{
		{"others", identified(told, "CN=a"), identified(told, "CN=b"), ""},
		{"the same", identified(told, "CN=x", "CN=a"), identified(told, "CN=b", "CN=x"), `tenant.yaml: identities.agents: "CN=x" is an identity of the tenant "a" already`},
		{"the same, by name", identified("", "CN=x"), identified("", "CN=x"), `tenant.yaml: identities.agents: "CN=x" is an identity of the tenant "a" already`},
		{"all of a CA before", told, identified(told, "CN=b"), `agents-ca.crt: with byCertificate, "CN=ca" is a CA of the tenant "a" already`},
		{"all of a CA later", identified(told, "CN=a"), told, `agents-ca.crt: with byCertificate, "CN=ca" is a CA of others already, by their identities`},
		{"all of a CA by name", identified(told, "CN=a"), "", ""},
		{"one side whole", "byCertificate: true\nidentities: {agents: [CN=a]}\n", identified(told, "CN=b"), `"CN=ca" is a CA of the tenant "a" already`},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t, "a")
			w.put("a", SettingsFile, "serverNames: [a.example]\n"+c.first)
			d := w.open()
			w.tenant("b", "b.example")
			w.put("b", SettingsFile, "serverNames: [b.example]\n"+c.later)
			d.Look()
			w.is(d, "a", StateServing, "")
			s := w.state(d, "b")
			testutil.Requires(t, (c.want != "" || s.State == StateServing) &&
				(c.want == "" || s.State == StateBroken && strings.HasSuffix(s.Error, c.want)), "the later one: %+v", s)
			testutil.Holds(t, !strings.Contains(s.Told, `"a"`), "its reader is told %q", s.Told)
			w.put("a", SettingsFile, "serverNames: [a.example]\n"+identified("byCertificate: true\n", "CN=z"))
			d.Look()
			d.Look()
			s = w.state(d, "b")
			testutil.Holds(t, s.State == StateServing || c.later == told, "what the first gave up is not taken: %+v", s)
		})
	}
}

// A tenant without a CA for agents cannot list who of it they are.
func TestIdentitiesNeedACA(t *testing.T) {
	w := newWorld(t)
	w.put("a", ClientsCAFile, string(w.ca.CertPEM))
	w.put("a", "k", "")
	w.put("a", SettingsFile, "serverNames: [a.example]\nidentities: {agents: [CN=a]}\ntokens: {kubeconfig: k, namespace: ns, serviceAccount: sa, audience: a}")
	testutil.Contains(t, w.state(w.open(), "a").Error, "tenant.yaml: identities.agents: there is no agents-ca.crt",
		"the error")
}

// Recheck, by which connections are judged again, asks for an identity too.
func TestRecheckAsksForAnIdentity(t *testing.T) {
	ca := newCA(t)
	c := testutil.Must(new(Spec).parseCAs("ca", inMemory{"ca": string(ca.CertPEM)}.read))(t)
	pair := testutil.Must(ca.Issue(pki.Leaf{CommonName: "a", Client: true}))(t)
	chain := []*x509.Certificate{pair.TLS().Leaf}
	a, b := c.narrow([]string{"CN=a"}), c.narrow([]string{"CN=b"})
	testutil.Holds(t, c.Recheck(chain) == nil && a.Recheck(chain) == nil && b.Recheck(chain) != nil, "it does not")
	testutil.Holds(t, !a.Same(b) && !a.Same(c) && a.Same(c.narrow([]string{"CN=a", "CN=a"})),
		"other identities are taken for the same")
}

// No name of a certificate passes for one of another kind, and a certificate with too many
// names has no identity.
func TestIdentityOf(t *testing.T) {
	many := make([]string, 70)
	for i := range many {
		many[i] = "o"
	}
	for what, c := range map[string]struct {
		cert x509.Certificate
		want tunnel.Identity
	}{
		"of all kinds": {x509.Certificate{
			Subject:  pkix.Name{CommonName: "a", Organization: []string{"o", "p"}},
			DNSNames: []string{"A.example"}, URIs: []*url.URL{{Scheme: "spiffe", Host: "T.example", Path: "/w"}},
		}, tunnel.NewIdentity("cn:a", "dns:a.example", "uri:spiffe://t.example/w", "org:o", "org:p")},
		"a URI in place of a name":   {x509.Certificate{Subject: pkix.Name{CommonName: "uri:spiffe://t.example/w"}}, "cn:uri:spiffe://t.example/w"},
		"two lines":                  {x509.Certificate{Subject: pkix.Name{CommonName: "a\nuid:0"}}, ""},
		"too many organisations":     {x509.Certificate{Subject: pkix.Name{CommonName: "a", Organization: many}}, ""},
		"more names than are looked": {x509.Certificate{Subject: pkix.Name{CommonName: "a"}, DNSNames: many}, ""},
		"no name":                    {x509.Certificate{}, ""},
	} {
		testutil.Equal(t, IdentityOf(&c.cert), c.want, "%s", what)
	}
}
