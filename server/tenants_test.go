package server

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"konnectivity/internal/testutil"
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
		if !answers(comes) {
			t.Error("one that has come is not served")
		}
		comes.remove()
		if answers(comes) {
			t.Error("one that was removed is served")
		}
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
	for name, kinds := range map[string][]string{"agents alone": nil, "clients, too": sharedClients} {
		t.Run(name, func(t *testing.T) {
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
			if _, list := s.get(s.admin, "/api/v1/failures?tenant=red"); !strings.Contains(list, `"matched":0`) {
				t.Errorf("the failures are %s", list)
			}
		})
	}
}
