package e2e

import (
	"io"
	"net"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Every server and every agent is replaced, one after the other, while all kinds of
// clients dial 100 times a second, as kube-apiserver calls webhooks. Nothing fails.
func TestRollingEverythingFailsNothing(t *testing.T) {
	t.Parallel()
	testutil.Each(t, map[string]string{"links": "auto", "gRPC and CONNECT": "off"}, func(t *testing.T, mode string) {
		t.Parallel()
		rollEverything(t, mode)
	})
}

func rollEverything(t *testing.T, mode string) {
	link := "--link=" + mode
	w := &whole{Suite: newSuite(t)}
	servers := []*suite.Server{must(w.StartServer("--server-count=2"))(t), must(w.StartServer("--server-count=2"))(t)}
	toClients, toAgents := newBalancer(t, clientSide(servers...)...), newBalancer(t, agentSide(servers...)...)
	// One agent knows a balancer, the other both servers.
	agents := make([]*suite.Agent, 2)
	start := func(i int) {
		to, flags := toAgents.front(), []string{link, "--agent-id=agent-1"}
		if i == 1 {
			to, flags = servers[0], []string{link, "--agent-id=agent-2", "--proxy-server-host=" + suite.Loopback(servers[1].AgentPort)}
		}
		agents[i] = must(w.StartAgent(to, flags...))(t)
		connected(t, agents[i], 2, patience)
	}
	start(0)
	start(1)
	w.socks, w.https = must(w.StartSOCKS5(toClients.front(), link))(t), must(w.StartHTTPS(toClients.front(), link))(t)
	ways := []tunnel.Dialer{
		viaSOCKS5(w.socks.Address()),
		viaConnect("tcp", w.https.Address(), nil),
		viaConnect("tcp", suite.Loopback(toClients.port), w.clientTLS(t)),
	}
	// It thinks, so that requests are under way whenever something is replaced.
	target := testutil.Serve(t, func(c *net.TCPConn) { time.Sleep(50 * time.Millisecond); _, _ = io.Copy(c, c) })
	stop := dialing(t, ways, target, 100)
	for range scaled(1, 10) {
		for _, srv := range servers {
			time.Sleep(time.Second)
			stopInOrder(t, srv.Process)
			toClients.restarted(srv.ClientPort)
			testutil.NoError(t, w.RunServer(srv, "--server-count=2"))
			for _, agent := range agents {
				connected(t, agent, 2, patience)
			}
		}
		for i, agent := range agents {
			time.Sleep(time.Second)
			stopInOrder(t, agent.Process)
			start(i)
		}
	}
	time.Sleep(time.Second)
	stop()
}

// stopInOrder asks a process to end, as Kubernetes does, and wants exit status 0.
func stopInOrder(t *testing.T, p *suite.Process) {
	t.Helper()
	if code, err := p.Stop(); err != nil || code != 0 {
		t.Errorf("%s after SIGTERM: exit status %d, %v\n%s", p.Name, code, err, p.Output())
	}
}
