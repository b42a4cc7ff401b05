package server

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/server/auth"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// Tenants come and go while their clients, and those of another, ask.
func TestTenantsChangeUnderLoad(t *testing.T) {
	s := startSharers(t)
	stays := s.add("stays", "")
	comes := &sharer{of: s, name: "comes", ca: stays.ca, cert: stays.cert}
	answers := func(c *sharer) bool { return s.asked(secureFor(c.serverName(), c.cert, "http/1.1")) }
	s.eventually("the tenant", func() bool { return answers(stays) })
	var asking sync.WaitGroup
	stop := make(chan struct{})
	for _, c := range []*sharer{stays, comes} {
		asking.Go(func() {
			for !tunnel.Closed(stop) {
				if !answers(c) && c == stays {
					t.Error("it is not served while another comes and goes")
					return
				}
			}
		})
	}
	for i := range 10 {
		comes.write(fmt.Sprintf("bounds: {connections: %d}", i+1))
		testutil.Holds(t, answers(comes), "one that has come is not served")
		comes.remove()
		testutil.Holds(t, !answers(comes), "one that was removed is served")
	}
	close(stop)
	asking.Wait()
	testutil.Equal(t, len(s.tenants.states()), 1, "states")
}

// removed says whether a tenant's cluster is over.
func (c *sharer) removed() bool {
	v := c.of.tenants.now.Load()
	return v.tenants[c.name] == nil && len(v.draining) == 0
}

// The next tenant of a name is shown nothing of the one that had it before, however that one's
// peers came: their last entries are made before its books are closed.
func TestWhoTakesATenantsNameIsNotShownItsPast(t *testing.T) {
	testutil.Each(t, map[string][]string{"agents alone": nil, "clients, too": sharedClients}, func(t *testing.T, kinds []string) {
		s := startSharers(t)
		red := s.add("red", "")
		testutil.Must(red.agentLink(link.Hello{Role: link.RoleAgent, ID: "one"}))(t)
		testutil.Must(red.agentGRPC(agentHello{id: "two"}))(t)
		red.has(2)
		for _, kind := range kinds {
			red.reaches(kind, "10.0.0.1:443")
		}
		red.remove()
		s.eventually("the tenant is over", red.removed)
		s.eventually("its streams have ended", func() bool {
			return s.metric(`grpc_connections{service_method="Connect"} 0`) && s.metric(`grpc_connections{service_method="Proxy"} 0`) && s.metric("established_connections 0")
		})
		red.write("")
		if _, status := s.get(s.admin, "/api/v1/status?tenant=red"); !strings.Contains(status, `"tenant":"red"`) || strings.Contains(status, "lastGone") {
			t.Errorf("the status is %s", status)
		}
		_, list := s.get(s.admin, "/api/v1/failures?tenant=red")
		testutil.Holds(t, strings.Contains(list, `"matched":0`), "the failures are %s", list)
	})
}

// crowdedServer is a server of so many tenants that does not run, so that nothing
// but what is measured allocates.
func crowdedServer(t *testing.T, crowd int) *Server {
	log, _ := logtest.NewNullLogger()
	folder, ca := t.TempDir(), testutil.Must(pki.NewCA("ca"))(t)
	for i := range crowd {
		writeTenant(t, folder, fmt.Sprintf("tenant-%d", i), fmt.Sprintf("serverNames: [t%d.example]", i), ca)
	}
	dir := testutil.Must(tenant.Open(folder, log))(t)
	plain := []Listener{{Listener: testutil.Listen(t)}}
	s := testutil.Must(New(Options{
		ID: "server", Clients: plain, Agents: plain, Log: log, Registry: prometheus.NewRegistry(),
		Tenants: dir, TenantTokens: func(*tenant.Tokens) *auth.TokensConfig { return nil },
	}))(t)
	dir.OnChange(s.tenants.apply)
	return s
}

// Of many tenants, a scrape costs little more than the series that each has.
func TestAScrapeOfManyTenantsIsCheap(t *testing.T) {
	const crowd = 100
	s := crowdedServer(t, crowd)
	scrape := func() {
		testutil.Succeeds(t, testutil.Err(s.gatherer().Gather()), "a scrape")
	}
	const alone, perTenant = 1500, 15
	testutil.AtMost(t, testing.AllocsPerRun(5, scrape), alone+crowd*perTenant, "allocations")
}
