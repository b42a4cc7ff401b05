package server

import (
	"crypto/tls"
	"strings"
	"testing"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

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
	if got := c.state(); got.State != tenant.StateServing {
		s.t.Fatalf("%+v", got)
	}
	return c
}

// with is the cluster as seen by the holder of another certificate.
func (c *sharer) with(cert tls.Certificate) *sharer {
	return &sharer{of: c.of, name: c.name, ca: c.ca, cert: cert}
}

// Clusters of one CA are told apart by what their folders list, under every name and
// by every protocol.
func TestIdentitiesTellClustersOfOneCAApart(t *testing.T) {
	s := startSharers(t)
	ca := testutil.Must(pki.NewCA("ca"))(t)
	red, blue := s.share(ca, "red"), s.share(ca, "blue")
	for _, c := range []*sharer{red, blue} {
		testutil.Must(c.unnamed(link.RoleAgent, ""))(t)
		testutil.Must(s.agentBy(secureFor("", c.cert), agentHello{id: "two"}, c.network))(t)
		c.has(2)
	}
	for _, c := range []*sharer{red, blue} {
		c.reachesItsOwn(s.tcp, "link", "grpc")
	}
	before := red.dialed.Load() + blue.dialed.Load()
	for what, wrong := range map[string]struct {
		cert  tls.Certificate
		names []string
	}{
		"red's":          {red.cert, []string{blue.serverName()}},
		"blue's":         {blue.cert, []string{red.serverName()}},
		"one of both":    {named(t, ca, "red", "blue"), append([]string{red.serverName(), blue.serverName()}, commonNames...)},
		"one of neither": {named(t, ca, "green"), append([]string{red.serverName(), blue.serverName()}, commonNames...)},
	} {
		for _, name := range wrong.names {
			c := red.with(wrong.cert)
			for _, role := range []link.Role{link.RoleAgent, link.RoleClient} {
				testutil.Fails(t, testutil.Err(c.unnamed(role, name)), "%s is let in as %v under %q", what, role, name)
			}
			if s.asked(secureFor(name, wrong.cert, "http/1.1")) {
				t.Errorf("%s is let in by CONNECT under %q", what, name)
			}
			if _, err := s.agentBy(secureFor(name, wrong.cert), agentHello{id: "one"}, c.network); err == nil {
				t.Errorf("%s is let in as an agent by gRPC under %q", what, name)
			}
			testutil.Fails(t, testutil.Err(c.dialAt("grpc", s.tcp, name, "10.0.0.1:443")), "%s is let in by gRPC under %q", what, name)
		}
	}
	if n := red.dialed.Load() + blue.dialed.Load() - before; n != 0 {
		t.Errorf("agents were asked for %d connections of certificates that are nobody's", n)
	}
	red.has(2)
	blue.has(2)
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
		if links[c], err = c.unnamed(link.RoleAgent, ""); err != nil {
			t.Fatal(err)
		}
		c.has(1)
	}
	session := new(sameSession)
	again := secureFor(red.serverName(), red.cert, "http/1.1")
	again.ClientSessionCache = session
	if !s.asked(again) || session.state.Load() == nil {
		t.Fatal("there is no session to go on with")
	}
	red.write(identified("crimson"))
	s.ends("the end of red's agent", links[red].Done())
	if s.asked(again) {
		t.Error("a session of an identity that is gone is good")
	}
	if got := blue.state(); got.State != tenant.StateServing {
		t.Errorf("what red gave up is not taken: %+v", got)
	}
	testutil.Succeeds(t, testutil.Err(blue.with(red.cert).unnamed(link.RoleAgent, "")), "whose identity is blue's now is not let in")
	blue.has(2)
	if tunnel.Closed(links[blue].Done()) {
		t.Error("blue's agent was cut")
	}
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
	for _, name := range []string{"", red.serverName(), blue.serverName()} {
		testutil.Fails(t, testutil.Err(both.unnamed(link.RoleClient, name)), "it is let in under %q", name)
	}
	red.write(identified("red") + "bounds: {connections: 100}\n") // which looks at all it has
	red.has(1)
	if tunnel.Closed(open.Done()) {
		t.Error("its connection was cut")
	}
}
