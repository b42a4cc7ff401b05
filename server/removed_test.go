package server

import (
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel/link"
)

// removed says whether a tenant's cluster is over.
func (c *sharer) removed() bool {
	v := c.of.tenants.now.Load()
	return v.tenants[c.name] == nil && len(v.draining) == 0
}

// Of a tenant that was removed nothing is shown to who has its name next, however its
// peers came: what they leave in the books comes before these are closed.
func TestWhoTakesATenantsNameIsNotShownItsPast(t *testing.T) {
	for name, kinds := range map[string][]string{"agents alone": nil, "clients, too": sharedClients} {
		t.Run(name, func(t *testing.T) {
			s := startSharers(t)
			red := s.add("red", "")
			testutil.Must(red.agentLink(link.Hello{Role: link.RoleAgent, ID: "one"}))(t)
			testutil.Must(red.agentGRPC(agentHello{id: "two"}))(t)
			red.has(2)
			for _, kind := range kinds {
				if c, err := red.dial(kind, "10.0.0.1:443"); err != nil || !red.greets(c) {
					t.Fatalf("%s: %v", kind, err)
				}
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
