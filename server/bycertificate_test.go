package server

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// told has a cluster's peers told by certificate.
const told = "byCertificate: true\n"

// commonNames are asked for by peers of all clusters.
var commonNames = []string{"", "127.0.0.1", "localhost", "shared.example"}

// unnamed is a link of a cluster's that asks for a common name.
func (c *sharer) unnamed(role link.Role, name string) (*link.Session, error) {
	at, cfg := c.of.tcp, link.Config{Hello: link.Hello{Role: role, ID: "one"}}
	if role == link.RoleAgent {
		at, cfg.Handler = c.of.agentAt, forwarder(c.network)
	}
	return c.of.linked(at, secureFor(name, c.cert, link.ALPN), cfg)
}

// state is what the server has of the cluster.
func (c *sharer) state() tenant.Status {
	s, _ := c.of.dir.Table().State(c.name)
	return s
}

// A connection on which it cannot be noted whose it is would be taken for the
// server's own cluster's, after a handshake by the CAs of a tenant.
func TestWhatCannotBeNotedIsRefused(t *testing.T) {
	s := startSharers(t)
	red := s.add("red", told)
	if _, err := red.unnamed(link.RoleClient, ""); err != nil { // once the server runs
		t.Fatal(err)
	}
	conn, far := net.Pipe() // which is none of the frontend's, and does not name one
	defer conn.Close()
	defer far.Close()
	choose := s.tenants.chooser(clients)
	g, err := choose(&tls.ClientHelloInfo{ServerName: red.serverName(), Conn: conn})
	testutil.Holds(t, errors.Is(err, errNotNoted), "by name: %v, %v", g, err)
	leaf := testutil.Must(x509.ParseCertificate(red.cert.Certificate[0]))(t)
	g = testutil.Must(choose(&tls.ClientHelloInfo{Conn: conn}))(t)
	testutil.ErrorIs(t, g.Verify([]*x509.Certificate{leaf}), errNotNoted, "by certificate")
}

// Two clusters that are told by certificate cannot have the same CA. The first
// keeps it.
func TestACAOfTwoClustersIsRefused(t *testing.T) {
	s := startSharers(t)
	red, blue := s.add("red", told), s.add("blue", told)
	blue.ca = red.ca
	blue.write(told)
	if got := blue.state(); got.State != tenant.StateStale || !strings.Contains(got.Error, `agents-ca.crt: with byCertificate, "CN=ca" is a CA of the tenant "red" already`) || strings.Contains(got.Told, "red") {
		t.Errorf("%+v", got)
	}
	got := red.state()
	testutil.Equal(t, got.State, tenant.StateServing, "the first is (%s)", got.Error)
	blue.write("") // by name alone it may
	got = blue.state()
	testutil.Equal(t, got.State, tenant.StateServing, "by name alone, the second is (%s)", got.Error)
	testutil.Must(red.unnamed(link.RoleAgent, ""))(t)
	red.has(1)
	blue.has(0)
}

// A CA that is taken away cuts those who were told by it, and the sessions that
// they began lead nowhere.
func TestACAThatIsGoneTellsNobodyAnyMore(t *testing.T) {
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		t.Run(tls.VersionName(version), func(t *testing.T) {
			s := startSharers(t)
			red, blue := s.add("red", told), s.add("blue", told)
			var links []*link.Session
			for _, c := range []*sharer{red, blue} {
				ses := testutil.Must(c.unnamed(link.RoleAgent, ""))(t)
				links = append(links, ses)
				c.has(1)
			}
			with := new(sameSession)
			// resumed asks with the session that was had last, under a name.
			resumed := func(name string, cert tls.Certificate) (in, resumed bool) {
				t.Helper()
				secure := secureFor(name, cert, "http/1.1")
				secure.ClientSessionCache, secure.MaxVersion = with, version
				return s.asked(secure), with.state.Load() != nil && s.resumes(secure)
			}
			in, again := resumed("", red.cert)
			testutil.Requires(t, in && again, "in: %v; resumed: %v", in, again)
			in, _ = resumed("blue.example", red.cert)
			testutil.Holds(t, !in, "red's session is good under blue's name")
			in, _ = resumed("red.example", red.cert)
			testutil.Holds(t, in, "red is not let in under its own name")
			in, _ = resumed("", red.cert)
			testutil.Holds(t, in, "red is not let in any more")
			old := red.cert
			red.replaceCA(told)
			s.ends("the end of red's agent", links[0].Done())
			in, _ = resumed("", old)
			testutil.Holds(t, !in, "a session of a CA that is gone is good")
			testutil.Holds(t, !tunnel.Closed(links[1].Done()), "blue's agent was cut")
		})
	}
}

// resumes says whether the server goes on with a session.
func (s *sharers) resumes(secure *tls.Config) bool {
	conn, err := tls.Dial("tcp", s.tcp, secure)
	if err != nil {
		return false
	}
	defer conn.Close()
	return conn.ConnectionState().DidResume
}

// Clusters whose CAs and certificates have the same names are told apart by who issued
// them, and only where that is wanted: agents, and clients that dial as kube-apiserver or
// a sidecar does.
func TestACertificateTellsWhoseAPeerIs(t *testing.T) {
	testutil.EachOf(t, agentKinds, func(t *testing.T, kind string) { testACertificateTellsWhoseAPeerIs(t, kind) })
}

func testACertificateTellsWhoseAPeerIs(t *testing.T, kind string) {
	s := startSharers(t)
	red, blue, green := s.add("red", told), s.add("blue", told), s.add("green", "")
	join := func(c *sharer, name, id string) (agent, error) {
		secure := func(protos ...string) *tls.Config { return secureFor(name, c.cert, protos...) }
		return s.agentAs(secure, kind, agentHello{id: id, identifiers: "ipv4=10.0.0.1"}, c.network)
	}
	refused := func(c *sharer, name string) {
		t.Helper()
		testutil.Fails(t, testutil.Err(join(c, name, "one")), "an agent of %s is let in under %q", c.name, name)
		testutil.Fails(t, testutil.Err(c.dialAt(kind, s.tcp, name, "10.0.0.1:443")), "a client of %s is let in under %q", c.name, name)
	}
	agents := make(map[*sharer][]agent)
	for _, c := range []*sharer{red, blue} {
		for i, name := range commonNames { // of which each agent asks for another
			a, err := join(c, name, fmt.Sprint("agent-", i))
			testutil.Requires(t, err == nil, "%s under %q: %v", c.name, name, err)
			agents[c] = append(agents[c], a)
		}
		c.has(len(commonNames))
	}
	for _, c := range []*sharer{red, blue} {
		c.reachesItsOwn(s.tcp, kind)
	}
	for _, name := range commonNames {
		refused(green, name)
	}
	refused(red, blue.serverName())
	refused(blue, red.serverName())
	for _, c := range []*sharer{red, blue} {
		testutil.Equal(t, c.dialed.Load(), int64(len(commonNames)+1), "how often the agents of %s were asked", c.name)
		c.has(len(commonNames))
	}

	red.replaceCA(told)
	for _, a := range agents[red] {
		s.ends("the end of red's agents, whose CA is gone", a.Done())
	}
	red.has(0)
	blue.has(len(commonNames))
	refused(red, "")
}

// identified has a cluster's peers told by the name that named gives them, of a CA
// that others share.
func identified(name string) string {
	id := "[" + name + ".peers.example]"
	return told + "identities: {agents: " + id + ", clients: " + id + "}\n"
}

// named is a certificate of a CA for the peers of these clusters.
func named(t *testing.T, ca *pki.CA, clusters ...string) tls.Certificate {
	leaf := pki.Leaf{CommonName: "peer", Client: true}
	for _, name := range clusters {
		leaf.DNS = append(leaf.DNS, name+".peers.example")
	}
	return issue(t, ca, leaf)
}

// share makes a cluster of the server's that has the CA of others.
func (s *sharers) share(ca *pki.CA, name string) *sharer {
	c := &sharer{of: s, name: name, ca: ca, cert: named(s.t, ca, name)}
	c.write(identified(name))
	got := c.state()
	testutil.Requires(s.t, got.State == tenant.StateServing, "%+v", got)
	return c
}

// with is the cluster as seen by the holder of another certificate.
func (c *sharer) with(cert tls.Certificate) *sharer {
	return &sharer{of: c.of, name: c.name, ca: c.ca, cert: cert}
}

// An identity that is taken away cuts those who have it, and nobody else; the sessions
// that they began lead nowhere. The one who claimed it later has it then.
func TestAnIdentityThatIsGone(t *testing.T) {
	s := startSharers(t)
	ca, err := pki.NewCA("ca")
	testutil.NoError(t, err)
	red, blue := s.share(ca, "red"), s.share(ca, "blue")
	blue.write(strings.Replace(identified("blue"), "blue.peers.example", "blue.peers.example, red.peers.example", 1))
	if got := blue.state(); got.State != tenant.StateStale || !strings.Contains(got.Error, `tenant.yaml: identities.agents: "red.peers.example" is an identity of the tenant "red" already`) {
		t.Fatalf("%+v", got)
	}
	links := make(map[*sharer]*link.Session)
	for _, c := range []*sharer{red, blue} {
		links[c], err = c.unnamed(link.RoleAgent, "")
		testutil.NoError(t, err)
		c.has(1)
	}
	session := new(sameSession)
	again := secureFor(red.serverName(), red.cert, "http/1.1")
	again.ClientSessionCache = session
	testutil.Requires(t, s.asked(again) && session.state.Load() != nil, "there is no session to go on with")
	red.write(identified("crimson"))
	s.ends("the end of red's agent", links[red].Done())
	testutil.Holds(t, !s.asked(again), "a session of an identity that is gone is good")
	got := blue.state()
	testutil.Equal(t, got.State, tenant.StateServing, "the one that takes what red gave up is (%s)", got.Error)
	testutil.Succeeds(t, testutil.Err(blue.with(red.cert).unnamed(link.RoleAgent, "")), "whose identity is blue's now is not let in")
	blue.has(2)
	testutil.Holds(t, !tunnel.Closed(links[blue].Done()), "blue's agent was cut")
}

// A certificate that becomes one of two clusters is refused from then on. What its
// holder has open stays.
func TestACertificateThatBecomesOneOfTwo(t *testing.T) {
	s := startSharers(t)
	ca := testutil.Must(pki.NewCA("ca"))(t)
	red := s.share(ca, "red")
	both := red.with(named(t, ca, "red", "blue"))
	open := testutil.Must(both.unnamed(link.RoleAgent, ""))(t)
	red.has(1)
	blue := s.share(ca, "blue")
	agentsOnly := strings.Replace(identified("blue"), "clients: [blue", "clients: [other", 1) // have its name
	for _, identities := range []string{identified("blue"), agentsOnly} {
		blue.write(identities)
		for _, name := range []string{"", red.serverName(), blue.serverName()} {
			testutil.Fails(t, testutil.Err(both.unnamed(link.RoleClient, name)), "it is let in under %q", name)
		}
	}
	red.write(identified("red") + "bounds: {connections: 100}\n") // which looks at all it has
	red.has(1)
	testutil.Holds(t, !tunnel.Closed(open.Done()), "its connection was cut")
}
