package e2e

import (
	"crypto/tls"
	"net/http"
	"net/url"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// Every server and every agent is replaced, one after the other, while webhooks
// are called 100 times a second by every kind of client. Nothing fails.
func TestRollingEverythingFailsNothing(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]string{"links": "auto", "gRPC and CONNECT": "off"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rollEverything(t, mode)
		})
	}
}

func rollEverything(t *testing.T, mode string) {
	link := "--link=" + mode
	s := newSuite(t)
	hooks := newWebhooks(t, s)
	a := must(s.StartServer("--server-count=2"))(t)
	b := must(s.StartServer("--server-count=2"))(t)
	toClients := newBalancer(t, clientSide(a, b)...)
	toAgents := newBalancer(t, agentSide(a, b)...)

	// One agent knows a balancer, the other both servers.
	first := []string{link, "--agent-id=agent-1"}
	second := []string{link, "--agent-id=agent-2", "--proxy-server-host=" + suite.Loopback(b.AgentPort)}
	agents := []*suite.Agent{must(s.StartAgent(toAgents.front(), first...))(t), must(s.StartAgent(a, second...))(t)}
	for _, agent := range agents {
		connected(t, agent, 2, patience)
	}
	socks := must(s.StartSOCKS5(toClients.front(), link))(t)
	https := must(s.StartHTTPS(toClients.front(), link))(t)
	cert := must(tls.LoadX509KeyPair(s.PKI("client.crt"), s.PKI("client.key")))(t)
	stop := hooks.load(100, map[string]*http.Client{
		"SOCKS5":  hooks.client(&url.URL{Scheme: "socks5h", Host: socks.Address()}),
		"HTTPS":   hooks.client(&url.URL{Scheme: "http", Host: https.Address()}),
		"CONNECT": hooks.client(&url.URL{Scheme: "https", Host: suite.Loopback(toClients.port)}, cert),
	})
	for round := range scaled(1, 10) {
		for _, srv := range []*suite.Server{a, b} {
			time.Sleep(time.Second)
			began := time.Now()
			stopInOrder(t, srv.Process)
			took := time.Since(began)
			toClients.restarted(srv.ClientPort)
			testutil.NoError(t, s.RunServer(srv, "--server-count=2"))
			for _, agent := range agents {
				connected(t, agent, 2, patience)
			}
			t.Logf("round %d: a server left in %v, all were back after %v", round, took, time.Since(began))
		}
		for i, srv := range []*suite.Server{toAgents.front(), a} {
			time.Sleep(time.Second)
			began := time.Now()
			stopInOrder(t, agents[i].Process)
			took := time.Since(began)
			agents[i] = must(s.StartAgent(srv, [][]string{first, second}[i]...))(t)
			connected(t, agents[i], 2, patience)
			t.Logf("round %d: an agent left in %v, the next was at both after %v", round, took, time.Since(began))
		}
	}
	time.Sleep(time.Second)
	sent, errs := stop()
	t.Logf("%d requests, %d failed", sent, len(errs))
	for i, err := range errs {
		if i < 20 {
			t.Error(err)
		}
	}
	if sent < 100 { // 700 on an idle machine
		t.Errorf("only %d requests were sent", sent)
	}
}

// stopInOrder asks a process to end, as Kubernetes does, and wants exit status 0.
func stopInOrder(t *testing.T, p *suite.Process) {
	t.Helper()
	if code, err := p.Stop(); err != nil || code != 0 {
		t.Errorf("%s after SIGTERM: exit status %d, %v\n%s", p.Name, code, err, p.Output())
	}
}
