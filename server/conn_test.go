package server

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/admin"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/auth"
	"konnectivity/server/tenant"
	"konnectivity/tunnel/link"
)

// casOf are those of a tenant.
func casOf(ca *pki.CA) *tenant.CAs {
	return &tenant.CAs{Certs: tlsreload.CertsOf([]*x509.Certificate{ca.Certificate()}), Digest: sha256.Sum256(ca.CertPEM)}
}

// tenant is a cluster of a tenant that both sides come to by r's CA.
func (r *rig) tenant() *cluster {
	cl := r.newCluster("a", r.limits.Tenant("a"), nil)
	cl.config.Store(&config{spec: &tenant.Spec{Name: "a", Agents: casOf(r.ca), Clients: casOf(r.ca)}})
	return cl
}

// guest has one in, and tells whether it was cut.
func (r *rig) guest(cl *cluster, side side, cut func()) {
	g := &conn{side: side, cut: func(error) { cut() }}
	for _, cert := range r.tls().Certificates {
		g.chain = tlsreload.CertsOf([]*x509.Certificate{cert.Leaf})
	}
	cl.conns.Set(g, true)
}

// Who a change cuts: whom nothing but what was taken away has let in.
func TestWhoAChangeCuts(t *testing.T) {
	r := startServer(t)
	other := testutil.Must(pki.NewCA("ca"))(t)
	ours, theirs := casOf(r.ca), casOf(other)
	tokens := &tenant.Tokens{Audience: "u"}
	for name, c := range map[string]struct {
		now             tenant.Spec
		agents, clients bool
	}{
		"nothing":                {tenant.Spec{Agents: ours, Clients: ours}, false, false},
		"another CA of agents":   {tenant.Spec{Agents: theirs, Clients: ours}, true, false},
		"another CA of clients":  {tenant.Spec{Agents: ours, Clients: theirs}, false, true},
		"tokens":                 {tenant.Spec{Agents: ours, Clients: ours, Tokens: tokens}, true, false},
		"no CA of agents at all": {tenant.Spec{Clients: ours}, true, false},
	} {
		cl := r.tenant()
		var cut [sides]bool
		for side := range sides {
			r.guest(cl, side, func() { cut[side] = true })
		}
		if cl.change(&config{spec: &c.now}); cut[agents] != c.agents || cut[clients] != c.clients {
			t.Errorf("%s: agents were cut: %v, clients: %v", name, cut[agents], cut[clients])
		}
	}
}

// A change of revocation lists cuts whom they name, so that nothing of theirs goes on by
// another link.
func TestAListCutsWhomItNames(t *testing.T) {
	r := startServer(t)
	cl := r.tenant()
	named, other := *casOf(r.ca), *casOf(r.ca)
	var causes [sides]error
	var all []*x509.Certificate
	for side := range sides {
		r.guest(cl, side, func() {})
	}
	for g := range cl.conns.All() {
		g.cut = func(cause error) { causes[g.side] = cause }
		all = append(all, g.chain.Parse()...)
	}
	list := testutil.Must(r.ca.Revoke(time.Now().Add(time.Hour), all...))(t)
	empty := testutil.Must(r.ca.Revoke(time.Now().Add(time.Hour)))(t)
	named.Lists = testutil.Must(tlsreload.ParseLists(list, []*x509.Certificate{r.ca.Certificate()}))(t)[0]
	other.Lists = testutil.Must(tlsreload.ParseLists(empty, []*x509.Certificate{r.ca.Certificate()}))(t)[0]
	named.Digest[0]++
	other.Digest[1]++
	cl.change(&config{spec: &tenant.Spec{Agents: &other, Clients: &named}})
	testutil.Holds(t, causes[agents] == nil && causes[clients] == errRevoked, "cut for %v", causes)
}

// One that was cut while it was judged does not become an agent.
func TestOneThatWasCutIsNotAdmitted(t *testing.T) {
	r := startServer(t)
	cl := r.tenant()
	who := auth.Peer{ID: "a1", TLS: &tls.ConnectionState{}}
	life, cut := context.WithCancelCause(context.Background())
	_, _, err := cl.judgeAgent(life, life, who, "link")
	testutil.NoError(t, err)
	cut(errCut)
	_, _, err = cl.judgeAgent(context.Background(), life, who, "link")
	testutil.Holds(t, errors.Is(err, errChanged), "got %v", err)
}

// Who comes by what is new is not refused for what was there before: a change is
// in force before handshakes are led to it.
func TestAChangeIsInForceBeforeHandshakesLeadToIt(t *testing.T) {
	s := startSharers(t)
	red := s.addServed("red", "")
	cl, early := red.cluster(), false
	cl.mu.Lock()
	s.guest(cl, clients, func() { early = s.tenants.now.Load().table != s.dir.Table() })
	cl.mu.Unlock()
	red.replaceCA("")
	led := s.tenants.now.Load().table == s.dir.Table()
	testutil.Holds(t, led && early, "handshakes are led to it: %v; it was in force before: %v", led, early)
}

// Whose tenant is removed during its handshake is refused.
func TestATenantThatIsRemovedMeanwhile(t *testing.T) {
	s := startSharers(t)
	red := s.addServed("red", "")
	secure := secureFor(red.serverName(), red.cert, "http/1.1")
	secure.Certificates = nil
	secure.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		red.remove() // the server knows by now whose connection this is
		return &red.cert, nil
	}
	testutil.Holds(t, !s.asked(secure), "it is served")
	s.eventually("it is counted", func() bool { return s.metric(`rejected_connections_total{listener="clients",reason="refused"} 1`) })
}

// A tenant takes 8 of 9 places of a port at most, and has them again when they
// are free.
func TestNoTenantTakesAllOfAPort(t *testing.T) {
	log, said := logtest.NewNullLogger()
	s := startSharers(t, func(o *Options) { o.Log, o.MaxConns = log, 9 })
	red := s.addServed("red", "")
	full := "a connection of clients was refused: the share of the tenant red is used up: it has 8 connections on the port for clients"
	for round := range 2 {
		said.Reset()
		var open []*link.Session
		for range 9 {
			if c, err := red.clientLink(); err == nil {
				open = append(open, c)
			}
		}
		testutil.Holds(t, len(open) == 8 && testutil.Lines(said, full) > 0, "%d links were made", len(open))
		testutil.Equal(t, red.cluster().room[agents].Used(), 0, "places of agents are taken")
		s.hasMetrics(fmt.Sprintf(`rejected_connections_total{listener="clients",reason="limit"} %d`, round+1))
		for _, c := range open {
			_ = c.Close()
		}
		s.eventually("free places", func() bool { // the tenant's, and then the port's
			return s.tenants.room[clients].Used() == 0 && s.metric(`listener_connections{listener="clients"} 0`)
		})
	}
}

// What failed of a tenant goes with it.
func TestFailuresGoWithTheirTenant(t *testing.T) {
	s := startSharers(t)
	red := s.addServed("red", "")
	failed := func() int { return len(ask[admin.Page[admin.Failure]](s.rig, "failures").Items) }
	for _, name := range []string{"", "red"} {
		s.table.Gone(admin.Departure{Tenant: name, Role: admin.RoleAgent}, time.Now(), io.EOF)
	}
	n := failed()
	testutil.Requires(t, n == 2, "%d failures", n)
	red.remove()
	s.eventually("one failure less", func() bool { return failed() == 1 })
}

// laneLinks is how many links of the cluster's agents are lanes.
func (c *sharer) laneLinks() (n int) {
	books := &c.cluster().lanes[agents]
	books.mu.Lock()
	defer books.mu.Unlock()
	for _, g := range books.known.All() {
		n += g.links
	}
	return n
}

// guestCount is how many connections the cluster has.
func (c *sharer) guestCount() int {
	cl := c.cluster()
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.conns.Len()
}

// An agent that is cut is not taken for lost, though the first of its lanes has long
// ended.
func TestAnAgentOfSeveralLanesThatIsCutIsNotLost(t *testing.T) {
	s := startSharers(t)
	red := s.add("red", "")
	hello := link.Hello{Role: link.RoleAgent, ID: "one", Group: laneGroupOfRed, Features: []string{link.FeatureLanes}}
	first := testutil.Must(red.agentLink(hello))(t)
	s.eventually("the first lane", func() bool { return red.laneLinks() == 1 })
	testutil.Must(red.agentLink(hello))(t)
	s.eventually("the second lane", func() bool { return red.laneLinks() == 2 })
	first.Close()
	s.eventually("the end of the first lane", func() bool { return red.laneLinks() == 1 && red.guestCount() == 1 })

	red.replaceCA("")
	status := ""
	s.eventually("the agent is gone", func() bool {
		_, status = s.get(s.admin, "/api/v1/status?tenant=red")
		return strings.Contains(status, "lastGone")
	})
	testutil.Contains(t, status, `"ordered":true`, "the status is")
	_, list := s.get(s.admin, "/api/v1/failures?tenant=red")
	testutil.Holds(t, strings.Contains(list, `"matched":0`), "the failures are %s", list)
}
