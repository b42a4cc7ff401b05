package server

import (
	"testing"

	"konnectivity/internal/admin"
	"konnectivity/internal/admission"
	"konnectivity/internal/testutil"
)

// Agents of both protocols are shown by the address that the load balancer
// names, and serve as ever.
func TestAgentsBehindABalancer(t *testing.T) {
	for _, kind := range agentKinds {
		t.Run(kind, func(t *testing.T) {
			r := startServer(t, func(o *Options) {
				networks := testutil.Must(admission.ParseNetworks([]string{"127.0.0.0/8", "::1"}))(t)
				o.Agents[0].Proxies = networks
			})
			const remote = "198.51.100.7:4711"
			r.agentAt, _ = between(t, r.agentAt, "PROXY TCP4 198.51.100.7 203.0.113.1 4711 8091\r\n")
			r.agent(kind, agentHello{id: "a"}, echoing)
			if peers := ask[admin.Page[admin.Peer]](r, "peers").Items; len(peers) != 1 || peers[0].Remote != remote {
				t.Errorf("the status page has %+v, want %s", peers, remote)
			}
			r.roundTrip(r.mustDial("connect-tls", "echo:1"), 100_000)
		})
	}
}
