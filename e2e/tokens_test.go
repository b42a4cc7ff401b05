package e2e

import (
	"crypto/tls"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// rejected waits until an agent says that the server refused it, and sees to it
// that it is not connected.
func rejected(t *testing.T, a *suite.Agent, why string) {
	t.Helper()
	logged(t, a.Process, patience, why)
	testutil.Equal(t, metric(a.HealthURL("/metrics"), "agent_open_server_connections"), 0,
		"connections of an agent that is to be refused")
}

// agentAccount is whose tokens agents are to have.
const agentAccount = "system:serviceaccount:kube-system:konnectivity-agent"

// secret is what every token begins with.
const secret = "t0ken-"

// nobodyLogsTokens fails the test for each program of a suite whose output has one.
func nobodyLogsTokens(t *testing.T, s *suite.Suite) {
	t.Helper()
	for _, p := range s.Processes() {
		testutil.Holds(t, !strings.Contains(p.Output(), secret), "%s logs a token", p.Name)
	}
}

// Agents authenticate by tokens that a Kubernetes API reviews.
func TestAgentsAuthenticateByToken(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	api := newKubeAPI(t, s)
	api.allow(secret+"good", identity{agentAccount, "konnectivity"})
	api.allow(secret+"for-others", identity{agentAccount, "vault"})
	api.allow(secret+"wrong-account", identity{"system:serviceaccount:default:default", "konnectivity"})
	srv := must(s.StartServer(append(api.apiArgs(), "--cluster-ca-cert=", "--agent-namespace=kube-system",
		"--agent-service-account=konnectivity-agent", "--authentication-audience=konnectivity")...))(t)
	with := func(token, id string) []string {
		path := filepath.Join(s.Dir, "token-"+id)
		testutil.NoError(t, os.WriteFile(path, []byte(secret+token+"\n"), 0o600))
		return []string{"--agent-cert=", "--agent-key=", "--service-account-token-path=" + path, "--agent-id=" + id}
	}
	must(s.StartAgent(srv, with("good", "good")...))(t)
	bad := []*suite.Agent{must(s.LaunchAgent(srv, "--agent-cert=", "--agent-key=", "--agent-id=none"))(t)}
	for _, token := range []string{"expired", "for-others", "wrong-account"} {
		bad = append(bad, must(s.LaunchAgent(srv, with(token, token)...))(t))
	}
	for _, a := range bad {
		rejected(t, a, "the server refused this agent")
	}
	_ = with("good", "expired") // the file is read anew at each attempt
	connected(t, bad[1], 1, patience)
	nobodyLogsTokens(t, s)
}

// Two CAs keep clients and agents apart whose certificates bear no role.
func TestTwoCAsKeepClientsAndAgentsApart(t *testing.T) {
	s := newSuite(t)
	asClient := []string{"--agent-cert=" + s.PKI("client.crt"), "--agent-key=" + s.PKI("client.key")}
	agents := newAuthority(t, s, "agents")
	two := must(s.StartServer("--cluster-ca-cert=" + agents.file))(t)
	node := agents.issue(t, "node", "", "")
	must(s.StartAgent(two, node...))(t)
	rejected(t, must(s.LaunchAgent(two, append(asClient, "--agent-id=client")...))(t), "cannot connect to server")
	w := &whole{Suite: s, server: two}
	config := w.clientTLS(t)
	pair := must(tls.LoadX509KeyPair(strings.TrimPrefix(node[0], "--agent-cert="), strings.TrimPrefix(node[1], "--agent-key=")))(t)
	target := testutil.Echo(t)
	pingPong(t, dialed(t, viaConnect("tcp", suite.Loopback(two.ClientPort), config), target), "a client")
	config.Certificates = []tls.Certificate{pair}
	refused(t, "an agent's certificate opened the clients' port", viaConnect("tcp", suite.Loopback(two.ClientPort), config), target)
}

// A sidecar without a certificate is known by its service account's token, by links and by
// CONNECT: rules are for accounts, and a token that is replaced is used from then on.
func TestClientsAuthenticateByToken(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	api := newKubeAPI(t, s)
	for _, name := range []string{"oauth", "metrics", "other"} {
		api.allow(secret+name, identity{"system:serviceaccount:control:" + name, "konnectivity"})
	}
	policy := filepath.Join(s.Dir, "policy.yaml")
	writePolicy(t, policy, "rules:\n- {name: oauth, action: allow, who: ['serviceaccount:control/oauth'], where: ['127.0.0.0/8']}\n")
	srv := must(s.StartServer("--client-service-accounts=control/oauth,control/metrics", "--client-authentication-audience=konnectivity",
		"--client-kubeconfig="+api.kubeconfig, "--policy-file="+policy))(t)
	must(s.StartAgent(srv))(t)
	target := testutil.Echo(t)
	path := filepath.Join(s.Dir, "token")
	write := func(token string) {
		testutil.NoError(t, os.WriteFile(path, []byte(secret+token+"\n"), 0o600))
	}
	for _, link := range []string{"auto", "off"} {
		write("other")
		front := must(s.StartSOCKS5(srv, "--tls-cert-path=", "--tls-key-path=", "--token-path="+path, "--link="+link, "--log-level=debug"))(t)
		failing := func(what string) {
			t.Helper()
			refused(t, what+" reaches the target, with --link="+link, viaSOCKS5(front.Address()), target)
		}
		failing("an account that is not accepted")
		write("oauth")
		reachable(t, viaSOCKS5(front.Address()), target)
		pingPong(t, dialed(t, viaSOCKS5(front.Address()), target), "oauth")
		front.Kill()
		write("metrics")
		front = must(s.StartSOCKS5(srv, "--tls-cert-path=", "--tls-key-path=", "--token-path="+path, "--link="+link))(t)
		failing("an account that no rule allows")
		front.Kill()
	}
	nobodyLogsTokens(t, s)
}
