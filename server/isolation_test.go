package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/testutil"
	"konnectivity/server/auth"
	"konnectivity/server/limits"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// byAddress has agents chosen by all that they may claim.
const byAddress = "strategies: [destHost, destCIDR, defaultRoute, default]\n"

// laneGroupOfRed is what the links of red's agent have in common.
const laneGroupOfRed = "0123456789abcdef"

// identifiersOfAll are what agents of a cluster may claim to be for.
var identifiersOfAll = []string{"", "ipv4=10.0.0.1", "host=a.example&host=red.example", "cidr=0.0.0.0/0&cidr=::/0", "default-route=true", "host=a.example&default-route=true&ipv4=10.0.0.2"}

// claims are hellos that claim what another cluster's agents have, and worse.
func claims(random *rand.Rand) link.Hello {
	of := func(choices ...string) string { return choices[random.IntN(len(choices))] }
	h := link.Hello{
		Role:        link.RoleAgent,
		ID:          of("one", "one", "red", "", "red/one", "\x00", strings.Repeat("x", 1000), "server-1"),
		Identifiers: of(append([]string{"%zz", "host=" + url.QueryEscape("red\x00")}, identifiersOfAll...)...),
		Token:       of("", "red", strings.Repeat("t", 20000)),
		Software:    of("", "tenant=red"),
		ServerCount: random.IntN(3),
		Group:       of("", laneGroupOfRed, laneGroupOfRed, "fedcba9876543210"),
	}
	for _, f := range []string{link.FeatureLanes, link.FeatureResume, "tenant=red"} {
		if random.IntN(3) > 0 {
			h.Features = append(h.Features, f)
		}
	}
	if random.IntN(10) == 0 {
		h.Role = link.Role(random.IntN(256))
	}
	return h
}

// Whatever the agents of one cluster claim, the clients of another do not come to
// them, by no protocol of either.
func TestClaimsLeadNobodyIntoAnotherCluster(t *testing.T) {
	s := startSharers(t, func(o *Options) { o.ResumeWindow = 30 * time.Second })
	red, blue := s.add("red", byAddress), s.add("blue", byAddress)
	first := link.Hello{Role: link.RoleAgent, ID: "one", Identifiers: "ipv4=10.0.0.1&host=a.example", Group: laneGroupOfRed, Features: []string{link.FeatureLanes}}
	for range 2 {
		testutil.Must(red.agentLink(first))(t)
	}
	testutil.Must(red.agentGRPC(agentHello{id: "two", identifiers: "ipv4=10.0.0.2"}))(t)
	red.has(2) // of which one has two lanes
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, id := range []string{"one", "two", "red"} {
		for _, ids := range identifiersOfAll {
			_, err := blue.agentLink(link.Hello{Role: link.RoleAgent, ID: id, Identifiers: ids, Group: laneGroupOfRed, Features: first.Features, Lost: laneGroupOfRed})
			testutil.Requires(t, err == nil, "blue's agent %q with %q is not taken, and shows nothing: %v", id, ids, err)
			_, err = blue.agentGRPC(agentHello{id: id, identifiers: ids})
			testutil.Requires(t, err == nil, "blue's agent %q with %q by gRPC: %v", id, ids, err)
		}
	}
	for range 40 { // of which some are taken
		_, _ = blue.agentLink(claims(random))
	}
	addresses := []string{"10.0.0.1:443", "10.0.0.2:443", "10.9.9.9:443", "a.example:443", "red.example:443", "[fd00::1]:443", "x:1"}
	for _, kind := range sharedClients {
		for _, address := range addresses {
			conn, err := red.dial(kind, address)
			if err != nil {
				t.Errorf("%s to %s: %v", kind, address, err)
				continue
			}
			testutil.Holds(t, red.greets(conn), "%s to %s: red's client did not come to red", kind, address)
			conn.Close()
		}
	}
	testutil.Equal(t, blue.dialed.Load(), 0, "blue's agents were asked for connections of red's clients")
	red.has(2)
	before := red.dialed.Load()
	for _, address := range addresses {
		conn, err := blue.dial("link", address)
		if err != nil {
			continue // by an agent that claims what it cannot serve
		}
		testutil.Holds(t, blue.greets(conn), "%s: blue's client did not come to blue", address)
		conn.Close()
	}
	testutil.Equal(t, red.dialed.Load()-before, 0, "red's agents were asked for connections of blue's clients")
}

// sameSession has the session that was had with any server for every other.
type sameSession struct {
	state atomic.Pointer[tls.ClientSessionState]
}

func (c *sameSession) Get(string) (*tls.ClientSessionState, bool) {
	state := c.state.Load()
	return state, state != nil
}

func (c *sameSession) Put(_ string, state *tls.ClientSessionState) {
	if state != nil {
		c.state.Store(state)
	}
}

// A certificate is good under its own cluster's names alone, on both ports, by
// all protocols, and so is a TLS session that began there.
func TestCertificatesAreGoodUnderTheirOwnNamesAlone(t *testing.T) {
	s := startSharers(t)
	red, blue := s.add("red", ""), s.add("blue", "")
	red.hasAgent()
	blue.hasAgent()
	names := map[string]*sharer{
		"red.example": red, "RED.Example.": red, "blue.example": blue,
		"": nil, "localhost": nil, "x.red.example": nil, "red.example.blue.example": nil, "red": nil, "127.0.0.1": nil,
	}
	for name, owner := range names {
		for _, holder := range []*sharer{red, blue} {
			for _, with := range []*sameSession{nil, {}} {
				client, worker := secureFor(name, holder.cert), secureFor(name, holder.cert)
				if with != nil { // a session of the holder's own, which the server is asked to go on with
					own := secureFor(holder.serverName(), holder.cert, "http/1.1")
					own.ClientSessionCache = with
					s.asked(own)
					testutil.Requires(t, with.state.Load() != nil, "there is no session to go on with")
					client.ClientSessionCache, worker.ClientSessionCache = with, with
				}
				what := fmt.Sprintf("%s's certificate under %q (with a session: %v)", holder.name, name, with != nil)
				want := owner == holder
				testutil.Equal(t, s.asked(withProtos(client, "http/1.1")), want, "%s: a client by CONNECT is let in", what)
				_, err := s.linked(s.tcp, withProtos(client, link.ALPN), link.Config{Hello: link.Hello{Role: link.RoleClient}})
				testutil.Holds(t, (err == nil) == want, "%s: a client by link: %v", what, err)
				_, err = s.linked(s.agentAt, withProtos(worker, link.ALPN), link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "x"}})
				testutil.Holds(t, (err == nil) == want, "%s: an agent by link: %v", what, err)
			}
		}
	}
	for name, owner := range names {
		for _, holder := range []*sharer{red, blue} {
			if owner == holder {
				continue
			}
			testutil.Fails(t, testutil.Err(s.agentBy(secureFor(name, holder.cert), agentHello{id: "x"}, holder.network)),
				"%s's certificate under %q: an agent by gRPC is let in", holder.name, name)
		}
	}
}

func withProtos(c *tls.Config, protos ...string) *tls.Config {
	c = c.Clone()
	c.NextProtos = protos
	return c
}

// asked says whether the server answers a client of that configuration at all.
func (s *sharers) asked(secure *tls.Config) bool {
	conn, err := tls.Dial("tcp", s.tcp, secure)
	if err != nil {
		return false
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		return false
	}
	_, err = io.ReadFull(conn, make([]byte, 1))
	return err == nil
}

// Whoever knows the token of another cluster's connection cannot go on with it:
// not a byte of it comes or goes.
func TestATokenOfAnotherClusterLeadsNowhere(t *testing.T) {
	t.Parallel() // it waits
	s := startSharers(t, func(o *Options) { o.ResumeWindow = 30 * time.Second })
	red, blue := s.add("red", ""), s.add("blue", "")
	for _, c := range []*sharer{red, blue} {
		ends := resume.New(resume.Options{Window: 30 * time.Second})
		t.Cleanup(func() { ends.Close(); ends.Wait() })
		hello := link.Hello{Role: link.RoleAgent, ID: "one", Features: []string{link.FeatureResume}}
		testutil.Must(s.linked(s.agentAt, secureFor(c.serverName(), c.cert, link.ALPN), link.Config{Hello: hello, Handler: ends.Handler(forwarder(c.network))}))(t)
		c.has(1)
	}
	open := func(c *sharer, resume tunnel.Resume) (tunnel.Conn, *tunnel.Flow, error) {
		ses := testutil.Must(c.clientLink())(t)
		f := tunnel.NewFlow("tcp", "a.example:443")
		f.Resume = &resume
		conn, err := ses.Dial(t.Context(), f)
		return conn, f, err
	}
	token := [16]byte{1, 2, 3}
	conn, f, err := open(red, tunnel.Resume{Token: token, Window: 30 * time.Second})
	testutil.NoError(t, err)
	granted := f.Resume.Granted
	testutil.Requires(t, granted.Window > 0 && red.greets(conn), "red's connection does not outlive its link: %+v", granted)
	for _, route := range []string{granted.Route, "", "one", "red/one"} {
		for _, epoch := range []uint32{1, 2, 1 << 31} {
			again, _, err := open(blue, tunnel.Resume{Token: token, Window: 30 * time.Second, Epoch: epoch, Route: route, Taken: 4})
			testutil.Requires(t, err != nil,
				"epoch %d by route %q: blue goes on with red's connection, %v", epoch, route, again)
			if route == granted.Route && tunnel.FailureOf(err) != tunnel.FailGone { // it is blue's agent that was asked
				t.Errorf("epoch %d by the same route: %v", epoch, err)
			}
		}
	}
	// One that asks for the same dial again gets a connection of its own cluster.
	for attempt := range uint32(3) {
		repeated, _, err := open(blue, tunnel.Resume{Token: token, Window: 30 * time.Second, Attempt: attempt})
		testutil.Holds(t, err == nil && (attempt != 0 || blue.greets(repeated)), "attempt %d: %v", attempt, err)
	}
	testutil.Equal(t, red.dialed.Load(), 1, "how often red's agent was asked")
	testutil.Must(io.WriteString(conn, "still"))(t)
	testutil.NoError(t, conn.CloseWrite())
	s.eventually("red's connection goes on", func() bool { return red.got.Load() == 5 })
	testutil.Equal(t, blue.got.Load(), 0, "bytes that blue's destinations got")
}

// kubeconfigOfNobody names an API that is never asked: reviews are the test's.
const kubeconfigOfNobody = `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1'}}]
users: [{name: u, user: {token: secret}}]
`

// Agents that somebody else has judged are cut, by either protocol, and nobody
// else is.
func TestOtherTokensCutTheAgentsThatUsedThem(t *testing.T) {
	s := startSharers(t, func(o *Options) {
		o.TenantTokens = func(k *tenant.Tokens) *auth.TokensConfig {
			return &auth.TokensConfig{Reviews: &reviews{}, Accounts: []auth.Account{{Namespace: k.Namespace, Name: k.ServiceAccount}}, Audience: k.Audience, PerSecond: 1000, Burst: 100}
		}
	})
	tokens := func(audience string) string {
		return "tokens: {kubeconfig: api, namespace: ns, serviceAccount: agent, audience: " + audience + "}\n"
	}
	api := [2]string{"api", kubeconfigOfNobody}
	red, blue := s.add("red", ""), s.add("blue", "")
	red.write(tokens("first"), api)
	blue.write(tokens("first"), api)
	join := func(c *sharer) (all []agent) {
		t.Helper()
		byLink := testutil.Must(c.agentLink(link.Hello{Role: link.RoleAgent, ID: "one", Token: "good"}))(t)
		byGRPC := testutil.Must(c.agentGRPC(agentHello{id: "two", token: "good"}))(t)
		c.has(2)
		return []agent{byLink, byGRPC}
	}
	reds, blues := join(red), join(blue)
	sidecar := testutil.Must(red.clientLink())(t)
	stay := func(what string, all ...agent) {
		t.Helper()
		for i, a := range all {
			testutil.Holds(t, !tunnel.Closed(a.Done()), "%s: %d was cut", what, i)
		}
	}

	red.write(tokens("first")+"bounds: {connections: 100}\n", api)
	stay("nothing but bounds", reds...)
	red.write(tokens("second"), api)
	for _, a := range reds {
		s.ends("the end of agents that were judged for another audience", a.Done())
	}
	red.has(0)
	stay("blue's agents", blues...)
	stay("red's sidecar", sidecar)
	join(red) // by the new
	testutil.Fails(t, testutil.Err(red.agentGRPC(agentHello{id: "two", token: "bad"})), "a token that is not good is taken")
	red.reaches("connect", "a:1")
}

// The keys with which an API signs tokens are read for each that reviews them: that of agents,
// of clients, and a tenant's.
func TestSigningKeysAreRead(t *testing.T) {
	config := func() (*auth.TokensConfig, *tunnel.Event) {
		read := new(tunnel.Event)
		return &auth.TokensConfig{Reviews: &reviews{}, Accounts: []auth.Account{{Namespace: "ns", Name: "agent"}}, SigningKeys: func(context.Context) ([]byte, error) {
			read.Happen()
			return nil, errors.New("there are none")
		}}, read
	}
	agents, ofAgents := config()
	clients, ofClients := config()
	red, ofRed := config()
	s := startSharers(t, func(o *Options) {
		o.Tokens, o.ClientTokens, o.TenantTokens = agents, clients, func(*tenant.Tokens) *auth.TokensConfig { return red }
	})
	s.add("red", "").write("tokens: {kubeconfig: api, namespace: ns, serviceAccount: agent, audience: a}\n", [2]string{"api", kubeconfigOfNobody})
	for whose, read := range map[string]*tunnel.Event{"agents'": ofAgents, "clients'": ofClients, "red's": ofRed} {
		s.ends("the wait for keys of "+whose+" tokens", read.Done())
	}
}

// A cluster that comes while the server goes harms nobody: whoever of it gets in
// is told to go, and the server ends in time.
func TestAClusterThatComesDuringADrain(t *testing.T) {
	s := startSharers(t, func(o *Options) { o.Grace = time.Minute })
	red := s.add("red", "")
	a := red.hasAgent()
	held := red.reaches("connect", "a:1")
	early, err := net.Dial("tcp", s.agentAt) // and takes its time for the handshake
	testutil.NoError(t, err)
	defer early.Close()
	time.Sleep(50 * time.Millisecond) // for it to be accepted; if not, it is refused, which is as good
	s.stop()
	s.ends("the server drains", a.Drains().Done())
	green := s.add("green", "")
	s.eventually("green", func() bool { return green.cluster() != nil })
	ses, err := link.Connect(t.Context(), tls.Client(early, secureFor(green.serverName(), green.cert, link.ALPN)), link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "one"}})
	if err == nil {
		defer ses.Close()
		s.eventually("an agent that came during the drain is told", func() bool { return ses.Drains().Happened() || tunnel.Closed(ses.Done()) })
	}
	t.Logf("an agent of a cluster that came during the drain: %v", err)
	testutil.Succeeds(t, testutil.Err(io.WriteString(held, "on")), "red's connection")
	_ = held.(*tls.Conn).CloseWrite()
	_, _ = io.Copy(io.Discard, held) // until its other end has taken all
	held.Close()
	s.ended()
	s.eventually("red's destination got all", func() bool { return red.got.Load() == 2 })
}

// Whatever a client speaks, it is told that it is its cluster's own bound that
// leaves no room, and hears nothing of it where the bound is another's.
func TestTheBoundOnMemoryIsNamed(t *testing.T) {
	s := startSharers(t)
	red, blue := s.add("red", "bounds: {memoryMiB: 1}"), s.add("blue", "")
	red.hasAgent()
	blue.hasAgent()
	held := red.cluster().limits.Budget().Share()
	held.Hold(1 << 20)
	defer held.Give(1 << 20)
	var status *statusError
	if _, err := red.dial("connect", "a:1"); !errors.As(err, &status) || status.code != 429 || !strings.Contains(status.body, limits.BoundReached) {
		t.Errorf("a client by CONNECT is told %v", err)
	}
	var refusal *link.GoAwayError
	_, err := red.clientLink()
	testutil.Holds(t, errors.As(err, &refusal) && refusal.Text == limits.BoundReached, "a sidecar is told %v", err)
	testutil.Fails(t, testutil.Err(red.dial("grpc", "a:1")), "a client by gRPC finds room")
	for _, kind := range sharedClients {
		blue.reaches(kind, "a:1")
	}
	s.hasMetrics(`tenant_bound_refusals_total{bound="memoryMiB",tenant="red"} 1`, `tenant_bound_refusals_total{bound="memoryMiB",tenant="blue"} 0`)
}

// What the log says of a connection names the tenant that it is of.
func TestLinesAboutConnectionsNameTheTenant(t *testing.T) {
	log, said := logtest.NewNullLogger()
	log.SetLevel(logrus.DebugLevel)
	s := startSharers(t, func(o *Options) { o.Log = log })
	red, blue := s.add("red", ""), s.add("blue", "")
	names := func(words string) {
		t.Helper()
		s.eventually("a line: "+words, func() bool {
			return slices.ContainsFunc(said.AllEntries(), func(e *logrus.Entry) bool {
				return strings.Contains(e.Message, words) && e.Data["tenant"] == "red"
			})
		})
		said.Reset()
	}
	testutil.Requires(t, !s.asked(secureFor(red.serverName(), blue.cert, "http/1.1")), "blue's client is let in")
	names("a TLS handshake of clients failed")
	testutil.Requires(t, testutil.Err(red.dial("grpc", "a.example:1")) != nil, "there is an agent")
	names(`connection to "a.example:1" ended`)
	for at, role := range map[string]link.Role{s.agentAt: link.RoleClient, s.tcp: link.RoleAgent} {
		_, err := s.linked(at, secureFor(red.serverName(), red.cert, link.ALPN), link.Config{Hello: link.Hello{Role: role, ID: "x"}})
		testutil.Requires(t, err != nil, "a link was made")
		names("a link was not made")
	}
}

// Every cluster hears how many servers there are, whatever its agents say of it.
func TestEveryClusterHearsTheNumberOfServers(t *testing.T) {
	s := startSharers(t)
	red, blue := s.add("red", ""), s.add("blue", "")
	var links []*link.Session
	for i, c := range []*sharer{red, blue} {
		a := testutil.Must(c.agentLink(link.Hello{Role: link.RoleAgent, ID: "one", ServerCount: 100 * i}))(t)
		sidecar := testutil.Must(c.clientLink())(t)
		links = append(links, a, sidecar)
		c.has(1)
		s.eventually("the sidecar is there", func() bool { return len(c.cluster().peers.clients()) == 1 })
	}
	s.tellCount(7)
	for i, ses := range links {
		s.eventually("all are told", func() bool { return ses.ServerCount() == 7 })
		testutil.Equal(t, ses.ServerCount(), 7, "servers that %d hears of", i)
	}
	// One whose handshake was on the way meanwhile learns it too.
	late := testutil.Must(red.agentLink(link.Hello{Role: link.RoleAgent, ID: "late"}))(t)
	s.eventually("the late one is told", func() bool { return late.ServerCount() == 7 })
}
