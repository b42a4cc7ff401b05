package server

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/auth"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// accounts is an API whose tokens are NAMESPACE:NAME of their account; old has expired.
type accounts struct{}

func (accounts) Create(_ context.Context, r kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
	if r.Token == "old" {
		return kubeapi.TokenReviewStatus{Error: "it has expired"}, nil
	}
	return kubeapi.TokenReviewStatus{Authenticated: strings.Contains(r.Token, ":"), Audiences: r.Audiences, User: kubeapi.UserInfo{Username: "system:serviceaccount:" + r.Token}}, nil
}

// startWithTokens is a server that accepts the tokens a:one and b:two of clients.
func startWithTokens(t *testing.T, more ...func(*Options)) *rig {
	return startServer(t, append(more, func(o *Options) {
		o.ClientTokens = &auth.TokensConfig{Reviews: accounts{}, Clients: true, Audience: "aud", PerSecond: 1000, Burst: 100,
			Accounts: []auth.Account{{Namespace: "a", Name: "one"}, {Namespace: "b", Name: "two"}}}
		o.APIServers = []string{tenant.APIByAgent}
		secure := o.Clients[0].TLS
		o.Clients[0].TLS = func(choose tlsreload.Choose, protos ...string) *tls.Config {
			c := secure(choose, protos...)
			c.ClientAuth = tls.VerifyClientCertIfGiven // as tlsreload's Bare has it
			return c
		}
	})...)
}

// bare is a client's TLS without a certificate.
func (r *rig) bare(protos ...string) *tls.Config {
	c := r.tls(protos...)
	c.Certificates = nil
	return c
}

// asks sends a request with a token, and returns the answer and its body.
func (r *rig) asks(config *tls.Config, line, token string) (*http.Response, string) {
	r.t.Helper()
	c := testutil.Must(tls.Dial("tcp", r.tcp, config))(r.t)
	r.t.Cleanup(func() { _ = c.Close() })
	if token != "" {
		token = "Proxy-Authorization: Bearer " + token + "\r\n"
	}
	testutil.Must(fmt.Fprintf(c, "%s HTTP/1.1\r\n%s\r\n", line, token))(r.t)
	resp := testutil.Must(http.ReadResponse(bufio.NewReader(c), nil))(r.t)
	var body []byte
	if resp.StatusCode != http.StatusOK {
		body, _ = io.ReadAll(resp.Body)
	}
	return resp, string(body)
}

// A client without a certificate is whom its token says, by links and CONNECT, and its
// account is its identity at the agent; one with a certificate is that one's holder.
func TestClientsAreKnownByTheirTokens(t *testing.T) {
	r := startWithTokens(t)
	told := make(chan tunnel.Identity, 1)
	r.hears(told)
	hello := link.Hello{Role: link.RoleClient, ID: "sidecar"}
	for token, want := range map[string]string{"a:one": "serviceaccount:a/one", "b:two": "serviceaccount:b/two"} {
		hello.Token = token
		ses := testutil.Must(r.clientLinkAs(r.bare(link.ALPN), hello))(t)
		testutil.Must(ses.Dial(testutil.Context(t), tunnel.NewFlow("tcp", "echo:1")))(t).Close()
		testutil.Equal(t, <-told, tunnel.NewIdentity(want), "link: the agent hears")
		resp, body := r.asks(r.bare(), "CONNECT echo:1", token)
		testutil.Holds(t, resp.StatusCode == http.StatusOK, "CONNECT: %s %s", resp.Status, body)
		testutil.Equal(t, <-told, tunnel.NewIdentity(want), "CONNECT: the agent hears")
	}
	resp, body := r.asks(r.tls(), "CONNECT echo:1", "b:two")
	testutil.Holds(t, resp.StatusCode == http.StatusOK, "with a certificate: %s %s", resp.Status, body)
	testutil.Equal(t, <-told, tunnel.NewIdentity("cn:peer"), "with a certificate, the agent hears")
}

// The log says why the API refuses a client's token; the client itself is not told.
func TestARefusedTokenIsLoggedWithItsCause(t *testing.T) {
	log, said := logtest.NewNullLogger()
	r := startWithTokens(t, func(o *Options) { o.Log = log })
	err := testutil.Err(r.clientLinkAs(r.bare(link.ALPN), link.Hello{Role: link.RoleClient, ID: "s", Token: "old"}))
	testutil.Holds(t, err != nil && !strings.Contains(err.Error(), "expired"), "the client is told %v", err)
	testutil.Holds(t, slices.ContainsFunc(said.AllEntries(), func(line *logrus.Entry) bool {
		return line.Message == "a client was refused" && fmt.Sprint(line.Data["cause"]) == "it has expired"
	}), "the log does not have the cause")
}

// A client with neither a certificate nor an accepted token is refused, and does not even
// learn whether there are agents.
func TestClientsWithoutProofAreRefused(t *testing.T) {
	r := startWithTokens(t)
	r.agent("grpc", agentHello{id: "a"}, echoing)
	for token, says := range map[string]string{"": "neither a certificate nor a token", "bad": "not valid", "c:three": "none of the accounts"} {
		for _, line := range []string{"CONNECT echo:1", "GET /"} {
			resp, body := r.asks(r.bare(), line, token)
			if resp.StatusCode != http.StatusProxyAuthRequired || resp.Header.Get("Proxy-Authenticate") != "Bearer" || !strings.Contains(body, says) || resp.Header.Get("Konnectivity-Serving") != "" {
				t.Errorf("%s with %q: %s, %v, %q", line, token, resp.Status, resp.Header, body)
			}
		}
		hello := link.Hello{Role: link.RoleClient, ID: "s", Token: token}
		testutil.ErrorSays(t, testutil.Err(r.clientLinkAs(r.bare(link.ALPN), hello)), says, "a link with %q", token)
	}
	// An agent beside the API server gets others' connections, so that a token is not enough.
	hello := link.Hello{Role: link.RoleAgent, ID: "s", Token: "a:one", Features: []string{link.FeatureAPIServer}}
	testutil.ErrorSays(t, testutil.Err(r.clientLinkAs(r.bare(link.ALPN), hello)), "certificate", "an agent by token")
	c := testutil.Opened(tls.Dial("tcp", r.tcp, r.bare("h2")))(t)
	testutil.Must(io.WriteString(c, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"))(t)
	text, err := io.ReadAll(c)
	testutil.Holds(t, len(text) == 0, "by gRPC it hears %q, %v", text, err)
	resp, _ := r.asks(r.tls(), "GET /", "")
	testutil.Holds(t, resp.Header.Get("Konnectivity-Serving") == "yes", "a client with a certificate hears %v", resp.Header)
}

// Lanes are of one identity: another account cannot join those of a client.
func TestLanesAreOfOneAccount(t *testing.T) {
	r := startWithTokens(t)
	hello := link.Hello{Role: link.RoleClient, ID: "sidecar", Group: strings.Repeat("g", link.GroupSize), Features: []string{link.FeatureLanes}}
	for i, token := range []string{"a:one", "a:one", "b:two"} {
		hello.Token = token
		testutil.Must(r.clientLinkAs(r.bare(link.ALPN), hello))(t)
		want := []int{1, 1, 2}[i]
		r.eventually("the links are known", func() bool {
			r.own.lanes[clients].mu.Lock()
			defer r.own.lanes[clients].mu.Unlock()
			return r.own.lanes[clients].known.Len() == want
		})
	}
}

// agentReaching connects an agent with these features, and waits until it is known. Its dials go
// to reach first, and then echo.
func (r *rig) agentReaching(id string, features []string, reach func(*tunnel.Flow)) {
	r.t.Helper()
	dial := tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		reach(f)
		return echoing(ctx, f.Address)
	})
	hello := link.Hello{Role: link.RoleAgent, ID: id, Features: features}
	cfg := link.Config{Hello: hello, Clients: new(link.Clients), Handler: &tunnel.Forwarder{Dialer: dial}}
	testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), cfg))(r.t)
	r.eventually("the agent is known", func() bool { return r.own.agents.Counts().Agents == 1 })
}

// hears connects an agent that is told who clients are.
func (r *rig) hears(told chan<- tunnel.Identity) {
	r.t.Helper()
	r.agentReaching("a", []string{link.FeatureIdentity}, func(f *tunnel.Flow) { told <- f.Who() })
}

// Whatever its client speaks, an agent hears who that is by its certificate, or by the
// socket that it came by; the admin API and an agent that is not told show no more.
func TestAgentsHearWhoTheClientIs(t *testing.T) {
	t.Parallel() // it waits
	r := startServer(t)
	told := make(chan tunnel.Identity, 1)
	r.hears(told)
	bySocket := tunnel.NewIdentity("socket:" + r.uds)
	if runtime.GOOS == "linux" {
		bySocket = tunnel.NewIdentity("socket:"+r.uds, fmt.Sprint("uid:", os.Getuid()))
	}
	for _, kind := range clientKinds {
		want := tunnel.NewIdentity("cn:peer")
		if strings.HasSuffix(kind, "uds") {
			want = bySocket
		}
		c := r.mustDial(kind, "echo:1")
		testutil.Equal(t, <-told, want, "%s: the agent hears", kind)
		r.eventually("the status tells who it is", func() bool {
			_, page := r.get(r.admin, "/api/v1/connections")
			return strings.Contains(page, `"identity":["`+strings.Join(want.Names(), `","`)+`"]`)
		})
		c.Close()
		r.eventually("it is closed", func() bool { return r.metric("established_connections 0") })
	}
	if _, page := r.get(r.admin, "/api/v1/peers?role=agent"); !strings.Contains(page, `"identity":["cn:peer"]`) {
		t.Errorf("the status does not tell who the agent is: %s", page)
	}
}

// What a client says of itself is no identity.
func TestClientsCannotSayWhoTheyAre(t *testing.T) {
	r := startServer(t)
	told := make(chan tunnel.Identity, 1)
	r.hears(told)
	ses := testutil.Must(r.clientLinkAs(r.tls(link.ALPN), link.Hello{Role: link.RoleClient, ID: "sidecar", Features: []string{link.FeatureIdentity}}))(t)
	f := tunnel.NewFlow("tcp", "echo:1")
	f.Origin.Who = tunnel.NewIdentity("cn:admin")
	testutil.Must(ses.Dial(testutil.Context(t), f))(t).Close()
	testutil.Equal(t, <-told, tunnel.NewIdentity("cn:peer"), "the agent hears")
}

// A server that forwards tells who the client is to the server that has the agent.
func TestForwardedClientsAreKnown(t *testing.T) {
	c := startCrew(t, 2)
	told := make(chan tunnel.Identity, 1)
	c.servers[1].hears(told)
	c.known(t, 1)
	c.servers[0].mustDial("connect-tls", "echo:1").Close()
	testutil.Equal(t, <-told, tunnel.NewIdentity("cn:peer"), "the agent hears")
}
