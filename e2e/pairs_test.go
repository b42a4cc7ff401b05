package e2e

import (
	"fmt"
	"strings"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// Every combination of --link on server, agent and sidecar works, or the side
// that requires what the other lacks says so. On the server "require" is about
// agents alone.
func TestLinkModes(t *testing.T) {
	t.Parallel()
	target := testutil.Echo(t)
	modes := []string{"auto", "off", "require"}
	for _, server := range modes {
		t.Run("server "+server, func(t *testing.T) {
			t.Parallel()
			s := newSuite(t)
			srv := must(s.StartServer("--link=" + server))(t)
			sidecars := map[string]*suite.Sidecar{}
			for _, mode := range modes {
				sidecars[mode] = must(s.StartSOCKS5(srv, "--link="+mode))(t)
			}
			for _, agent := range modes {
				if (server == "off" && agent == "require") || (server == "require" && agent == "off") {
					refusedAgent(t, s, srv, agent)
					continue
				}
				// An additional protocol id is for balancers and changes nothing.
				a := must(s.StartAgent(srv, "--link="+agent, "--alpn-proto=example"))(t)
				ready(t, srv, 1, patience)
				for mode, sidecar := range sidecars {
					o := echoOnce(viaSOCKS5(sidecar.Address()), target)
					if refused := server == "off" && mode == "require"; refused {
						testutil.Fails(t, o.err, "agent %s, sidecar %s", agent, mode)
						logged(t, sidecar.Process, patience, "none of the protocols that --link allows")
					} else if o.err != nil {
						t.Errorf("agent %s, sidecar %s: %v", agent, mode, o.err)
					}
				}
				must(a.Stop())(t)
				ready(t, srv, 0, patience)
			}
		})
	}
}

// refusedAgent starts an agent that cannot be served, and wants a sentence.
func refusedAgent(t *testing.T, s *suite.Suite, srv *suite.Server, mode string) {
	t.Helper()
	p := must(s.Run("konnectivity-agent", nil, "--link="+mode, "--proxy-server-host="+suite.Loopback(srv.AgentPort),
		"--health-server-host=127.0.0.1", "--health-server-port="+anyPort(t), "--admin-server-port="+anyPort(t),
		"--ca-cert="+s.PKI("ca.crt"), "--agent-cert="+s.PKI("agent.crt"), "--agent-key="+s.PKI("agent.key")))(t)
	eventually(t, patience, fmt.Sprintf("agent with --link=%s says why", mode), func() (bool, any) {
		return strings.Contains(p.Output(), "link=require"), p.Output()
	})
	testutil.Equal(t, metric(srv.HealthURL("/metrics"), "server_ready_backend_connections"), 0,
		"agents with --link=%s that the server counts", mode)
	must(p.Stop())(t)
}
