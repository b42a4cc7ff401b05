package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// Each of three servers is replaced in turn by a new one with a new id. Every
// agent is at three servers again within 15 s, with default flags: mostly, since
// which server a balancer leads to is chance. One of three rounds may take longer.
func TestEachOfThreeServersIsReplaced(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	var servers []*suite.Server
	for range 3 {
		servers = append(servers, must(s.StartServer("--server-count=3"))(t))
	}
	lb := newBalancer(t, agentSide(servers...)...)
	var agents []*suite.Agent
	for i := range scaled(1, 4) {
		for name, args := range map[string][]string{
			"link": nil, "grpc": {"--link=off"},
		} {
			args = append(args, fmt.Sprintf("--agent-id=%s-%d", name, i))
			agents = append(agents, must(s.StartAgent(lb.front(), args...))(t))
			// One that knows all three by name.
			args = append(args, args[len(args)-1]+"-direct", "--proxy-server-host="+suite.Loopback(servers[1].AgentPort), "--proxy-server-host="+suite.Loopback(servers[2].AgentPort))
			agents = append(agents, must(s.StartAgent(servers[0], args...))(t))
		}
	}
	for _, a := range agents {
		connected(t, a, 3, patience)
	}
	late := 0
	for i, srv := range servers {
		how := []string{"killed", "stopped", "stopped"}[i]
		if how == "killed" {
			srv.Kill()
		} else {
			stopInOrder(t, srv.Process)
		}
		testutil.NoError(t, s.RunServer(srv, "--server-count=3"))
		began, took := time.Now(), stopwatch(s)
		for _, a := range agents {
			connected(t, a, 3, patience)
		}
		if net := took(); net > 15*time.Second {
			if late++; late > 1 {
				t.Errorf("server %d, %s and replaced: all agents back only after %v, and %d times as late", i, how, net, late)
			}
		}
		reaches(t, patience, srv.HealthURL("/metrics"), "server_ready_backend_connections", float64(len(agents)))
		t.Logf("server %d, %s and replaced: all %d agents back after %v", i, how, len(agents), time.Since(began))
	}
}

// Servers come and go, counted by their leases: from 2 to 6 and back. Agents
// that hear the count from servers and agents that watch the leases themselves
// are right within 30 s, but for chance, as above.
func TestScalingByLeases(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	api := newKubeAPI(t, s)
	lb := newBalancer(t)
	start := func(i int) *suite.Server {
		return must(s.StartServer(append(api.apiArgs(), "--enable-lease-controller", fmt.Sprintf("--server-id=srv-%d", i))...))(t)
	}
	servers := []*suite.Server{start(0), start(1)}
	lb.set(agentSide(servers...)...)
	agents := map[string]*suite.Agent{
		"told by servers, links": must(s.StartAgent(lb.front()))(t),
		"told by servers, gRPC":  must(s.StartAgent(lb.front(), "--link=off"))(t),
		"watches leases":         must(s.StartAgent(lb.front(), append(api.apiArgs(), "--count-server-leases")...))(t),
		"watches leases, gRPC":   must(s.StartAgent(lb.front(), append(api.apiArgs(), "--count-server-leases", "--link=off")...))(t),
	}
	late := 0
	right := func(n int, bound time.Duration) {
		t.Helper()
		began, took := time.Now(), stopwatch(s)
		for name, a := range agents {
			eventually(t, bound+patience, fmt.Sprintf("%s: at %d servers and looking for no more", name, n), func() (bool, any) {
				open, known := metric(a.HealthURL("/metrics"), "agent_open_server_connections"), metric(a.HealthURL("/metrics"), "agent_known_server_count")
				return open == float64(n) && known == float64(n), fmt.Sprintf("%v of %v", open, known)
			})
		}
		t.Logf("%d servers: all agents right after %v", n, time.Since(began))
		if net := took(); net > bound {
			if late++; late > 1 {
				t.Errorf("%d servers: all agents right only after %v, want %v, and %d times as late", n, net, bound, late)
			}
		}
	}
	right(2, 30*time.Second)
	for i := 2; i < 6; i++ {
		servers = append(servers, start(i))
	}
	lb.set(agentSide(servers...)...)
	right(6, 30*time.Second)
	lease := api.lease("srv-3")
	if lease == nil || *lease.Spec.HolderIdentity != "srv-3" || *lease.Spec.LeaseDurationSeconds != 30 || lease.Labels["k8s-app"] != "konnectivity-server" ||
		time.Since(lease.Spec.RenewTime.Time) > 30*time.Second {
		t.Errorf("the lease of a server: %+v", lease)
	}
	lb.set(agentSide(servers[:2]...)...)
	for i, srv := range servers[2:] {
		stopInOrder(t, srv.Process)
		testutil.Equal(t, api.lease(fmt.Sprintf("srv-%d", i+2)), nil, "the lease of server %d, which has left", i+2)
	}
	right(2, 30*time.Second)
	if scaled(false, true) {
		// A server that dies leaves a lease, which the others collect.
		servers[1].Kill()
		lb.set(agentSide(servers[0])...)
		right(1, 75*time.Second)
		testutil.Equal(t, metric(servers[0].HealthURL("/metrics"), "server_culled_leases_count"), 1,
			"leases that were collected")
	}
	for _, a := range agents {
		if strings.Contains(a.Output(), "level\":\"error") {
			t.Error(a.Output())
		}
	}
	_ = servers[0].Signal(syscall.SIGTERM)
}
