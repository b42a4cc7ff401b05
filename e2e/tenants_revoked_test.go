package e2e

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A tenant's client, and then its agent, that the tenant's ca.crl names is cut with all that it
// has open, and cannot come back; its other clients and the neighbour do not notice.
func TestRevokedPeersOfATenantAreDisconnected(t *testing.T) {
	t.Parallel()
	h := &hosting{Suite: newSuite(t), dir: t.TempDir()}
	a, b := h.tenant(t, "a"), h.tenant(t, "b")
	h.server = must(h.StartServer("--tenants-dir=" + h.dir))(t)
	h.agent(t, a)
	h.agent(t, b)
	agent := must(x509.ParseCertificate(must(tls.LoadX509KeyPair(h.PKI("a-agent.crt"), h.PKI("a-agent.key")))(t).Certificate[0]))(t)
	client := func(c *clusterOfMany, name string) (leaf *x509.Certificate, connect, socks tunnel.Dialer) {
		base, issuer := h.PKI(c.name+"-"+name), authority{CA: c.ca}
		pair := issuer.write(t, pki.Leaf{CommonName: name, Client: true}, base+".crt", base+".key")
		sidecar := must(h.StartSOCKS5(h.server, "--server-name="+c.serverName(), "--ca-cert-path="+h.PKI(c.name+"-ca.crt"), "--tls-cert-path="+base+".crt", "--tls-key-path="+base+".key"))(t)
		config := &tls.Config{ServerName: c.serverName(), RootCAs: c.ca.Pool(), Certificates: []tls.Certificate{pair.TLS()}, NextProtos: []string{"http/1.1"}}
		return pair.TLS().Leaf, viaConnect("tcp", suite.Loopback(h.server.ClientPort), config), viaSOCKS5(sidecar.Address())
	}
	bad, badConnect, badSocks := client(a, "bad")
	_, goodConnect, goodSocks := client(a, "good")
	_, otherConnect, otherSocks := client(b, "other")
	l := newLoad(t)
	for range 5 {
		l.add(t, "revoked, by link", badSocks, a.target, true)
		l.add(t, "revoked, by CONNECT", badConnect, a.target, true)
		l.add(t, "the same tenant's, by link", goodSocks, a.target, false)
		l.add(t, "the same tenant's, by CONNECT", goodConnect, a.target, false)
		l.add(t, "the neighbour's, by link", otherSocks, b.target, false)
		l.add(t, "the neighbour's, by CONNECT", otherConnect, b.target, false)
	}
	revoke := func(ca *pki.CA, certs ...*x509.Certificate) {
		a.files["ca.crl"] = string(must(ca.Revoke(time.Now().Add(time.Hour), certs...))(t))
		h.put(t, a)
	}
	changed := time.Now()
	revoke(a.ca, bad)
	t.Logf("connections were ended within %v of the change", l.only(t, changed))
	for what, by := range map[string]tunnel.Dialer{"link": badSocks, "CONNECT": badConnect} {
		refused(t, "a revoked client is served by "+what, by, a.target)
	}
	states := h.states(t)
	if states["a"] != "serving 1" || states["b"] != "serving 1" {
		t.Errorf("the API has %v", states)
	}

	// The agent: what it carries ends, and the tenant has none any more.
	for _, c := range l.conns {
		c.denied = c.denied || strings.HasPrefix(c.what, "the same tenant's")
	}
	changed = time.Now()
	revoke(a.ca, bad, agent)
	l.only(t, changed)
	h.isIn(t, "serving 0", "a")

	// Another CA's list changes nothing, and lets nobody in.
	revoke(b.ca)
	eventually(t, patience, "the tenant is stale", func() (bool, any) {
		states := h.states(t)
		return states["a"] == "stale 0" && states["b"] == "serving 1", states
	})
	refused(t, "a revoked client is served, by the list of another CA", badConnect, a.target)
}

// A cluster moves from a server of its own to a shared one, and out again, by
// what its name leads to: its agents and sidecars are not touched, and what is
// open goes on.
func TestAClusterMovesInAndOutWithoutACut(t *testing.T) {
	t.Parallel()
	h := &hosting{Suite: newSuite(t), dir: t.TempDir()}
	own := must(h.StartServer())(t)
	toAgents, toClients := newBalancer(t, agentSide(own)...), newBalancer(t, clientSide(own)...)
	const name = "localhost" // which the server's certificate has
	agent := must(h.StartAgent(toAgents.front(), "--server-name="+name, "--sync-interval-cap=2s"))(t)
	connected(t, agent, 1, patience)
	socks := must(h.StartSOCKS5(toClients.front(), "--server-name="+name))(t)
	held := dialed(t, viaSOCKS5(socks.Address()), testutil.Echo(t))
	pingPong(t, held, "by its own server")

	folder := filepath.Join(h.dir, "moved")
	testutil.NoError(t, os.Mkdir(folder, 0o700))
	ca := must(os.ReadFile(h.PKI("ca.crt")))(t)
	for file, text := range map[string][]byte{"agents-ca.crt": ca, "clients-ca.crt": ca, "tenant.yaml": []byte("serverNames: [" + name + "]\n")} {
		replace(t, filepath.Join(folder, file), text)
	}
	h.server = must(h.StartServer("--tenants-dir=" + h.dir))(t)
	move := func(from, to *suite.Server) {
		t.Helper()
		toAgents.set(agentSide(to)...)
		toClients.set(clientSide(to)...)
		stopInOrder(t, from.Process)
	}
	move(own, h.server)
	pingPong(t, held, "by the shared server")
	eventually(t, patience, "the agent is the shared server's", func() (bool, any) {
		states := h.states(t)
		return states["moved"] == "serving 1", states
	})

	testutil.NoError(t, h.RunServer(own))
	move(h.server, own)
	pingPong(t, held, "by its own server again")
}
