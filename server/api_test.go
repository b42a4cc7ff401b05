package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/testutil"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// apiServer is one that says its name and then sends back what it gets.
func apiServer(t *testing.T, name string) (address string) {
	t.Helper()
	return testutil.Serve(t, func(c *net.TCPConn) {
		_, _ = io.WriteString(c, name)
		_, _ = io.Copy(c, c)
	})
}

// says fails unless the API server behind c has this name.
func says(t *testing.T, c net.Conn, name string) {
	t.Helper()
	got := make([]byte, len(name))
	_, err := io.ReadFull(c, got)
	testutil.Holds(t, err == nil && string(got) == name, "%q, %v", got, err)
}

// apiAgent is an agent's link that takes part.
func apiAgent(id string) link.Config {
	return link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: id, Features: []string{link.FeatureAPI}}}
}

func askAPI(t *testing.T, ses *link.Session) (tunnel.Conn, error) {
	return ses.Dial(testutil.Context(t), tunnel.NewFlow(link.NetworkAPI, link.APIAddress))
}

// An agent reaches the API server that is named, whatever address it asks for, and
// nothing else.
func TestAgentsReachTheAPIServerAlone(t *testing.T) {
	there := apiServer(t, "own")
	r := startServer(t, func(o *Options) { o.APIServers = []string{there} })
	ses := testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), apiAgent("a")))(t)
	testutil.Requires(t, ses.API(), "the server does not take part")
	c := testutil.Must(askAPI(t, ses))(t)
	says(t, c, "own")
	r.roundTrip(c, 1<<20)
	testutil.NoError(t, c.CloseWrite())
	testutil.Must(io.ReadAll(c))(t)
	_ = c.Close()
	elsewhere := testutil.Must(ses.Dial(testutil.Context(t), tunnel.NewFlow(link.NetworkAPI, r.health)))(t)
	says(t, elsewhere, "own")
	_ = elsewhere.Close()
	for _, network := range []string{"tcp", link.NetworkRoutes} {
		failedAs(t, testutil.Err(ses.Dial(testutil.Context(t), tunnel.NewFlow(network, there))), tunnel.FailDenied, "%s", network)
	}
	r.eventually("both are counted", func() bool {
		return r.metric(`api_refusals_total{reason="other"} 2`) && r.metric(`requests_total{front="api",outcome="ok"} 2`)
	})
	old := apiAgent("old")
	old.Hello.Features = nil
	ses = testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), old))(t)
	_, err := askAPI(t, ses)
	testutil.Holds(t, tunnel.FailureOf(err) == tunnel.FailDenied && !ses.API(), "an agent that takes no part: %v", err)
}

// Without an API server to name, agents are told to ask elsewhere; where it is down, they
// are told that.
func TestAgentsAreToldWhyThereIsNoAPIServer(t *testing.T) {
	for want, servers := range map[tunnel.Failure][]string{
		tunnel.FailUnavailable: nil, tunnel.FailRefused: {testutil.ReservedAddress(t)},
	} {
		r := startServer(t, func(o *Options) { o.APIServers = servers })
		ses := testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), apiAgent("a")))(t)
		failedAs(t, testutil.Err(askAPI(t, ses)), want, "%v", servers)
	}
}

// Of several API servers, one that is down is passed over.
func TestAPIServersStandInForEachOther(t *testing.T) {
	r := startServer(t, func(o *Options) { o.APIServers = []string{testutil.ReservedAddress(t), apiServer(t, "up")} })
	ses := testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), apiAgent("a")))(t)
	for range 10 {
		c := testutil.Must(askAPI(t, ses))(t)
		says(t, c, "up")
		_ = c.Close()
	}
}

// A tenant's agents reach their own API server, and only as long as their tenant names it.
func TestTenantsReachTheirOwnAPIServers(t *testing.T) {
	s := startSharers(t, func(o *Options) { o.APIServers = []string{apiServer(t, "none's")} })
	at := map[string]string{"red": apiServer(t, "red"), "blue": apiServer(t, "blue")}
	linked := map[string]*link.Session{}
	for name, address := range at {
		c := s.addServed(name, "apiServers: ['"+address+"']")
		linked[name] = testutil.Must(s.linked(s.agentAt, secureFor(c.serverName(), c.cert, link.ALPN), apiAgent("a")))(t)
		conn := testutil.Must(askAPI(t, linked[name]))(t)
		says(t, conn, name)
		if name == "red" {
			c.write("")
			failedAs(t, testutil.Err(askAPI(t, linked[name])), tunnel.FailUnavailable, "the tenant names none any more")
		}
	}
	s.eventually("it is counted", func() bool { return s.metric(`api_refusals_total{reason="unset"} 1`) })
}

// beside is an agent beside an API server, which says its name and then echoes.
type beside struct {
	link.Config
	mu    sync.Mutex
	asked []string // each request's network, address and client
}

func newBeside(name string) *beside {
	b := new(beside)
	b.Hello = link.Hello{Role: link.RoleAgent, ID: name, Features: []string{link.FeatureAPIServer, link.FeatureIdentity, link.FeatureResume}}
	b.Clients = new(link.Clients)
	b.Handler = &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		b.mu.Lock()
		b.asked = append(b.asked, fmt.Sprint(f.Network, " ", f.Address, " ", f.Who().Names()))
		b.mu.Unlock()
		near, err := echoing(ctx, f.Address)
		if err != nil {
			return nil, err
		}
		return tunnel.Unread(near, []byte(name)), nil
	})}
	return b
}

// at links it to the port for clients.
func (b *beside) at(r *rig) *link.Session {
	r.t.Helper()
	before := r.own.beside.Counts().Agents
	ses := testutil.Must(r.linked(r.tcp, r.tls(link.ALPN), b.Config))(r.t)
	r.eventually("it is known", func() bool { return r.own.beside.Counts().Agents > before })
	return ses
}

func byAgent(o *Options) { o.APIServers = []string{tenant.APIByAgent} }

// fromNode has a node's agent ask for the API server.
func (r *rig) fromNode(id string) (tunnel.Conn, error) {
	r.t.Helper()
	return askAPI(r.t, testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), apiAgent(id)))(r.t))
}

// An agent beside the API server is told which node's agent asks, and is asked for nothing
// else. No other agent is asked for the API server.
func TestAnAgentBesideTheAPIServerDials(t *testing.T) {
	r := startServer(t, byAgent)
	b := newBeside("b")
	b.at(r)
	failedAs(t, testutil.Err(r.dial("link", "x:1")), tunnel.FailNoAgent, "a client reaches an agent that is none of a node")
	testutil.Fails(t, r.Ready(), "the server is ready without an agent of a node")
	c := testutil.Must(r.fromNode("node"))(t)
	says(t, c, "b")
	r.roundTrip(c, 1<<20)
	_ = c.Close()
	r.agent("link", agentHello{id: "other"}, func(context.Context, string) (tunnel.Conn, error) {
		t.Error("an agent of a node is asked for the API server")
		return nil, io.EOF
	})
	c = testutil.Must(r.fromNode("node"))(t)
	says(t, c, "b")
	_ = c.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, asked := range b.asked {
		testutil.Equal(t, asked, "api kubernetes:443 [cn:peer]", "it was asked for")
	}
	listed := map[string]string{}
	for _, p := range r.adminPeers() {
		listed[p.ID] = p.Identifiers
	}
	testutil.Holds(t, len(b.asked) == 2 && listed["b"] == "beside the API server" && listed["other"] == "",
		"%d requests; %q", len(b.asked), listed)
}

// Who may not be beside the API server is refused: at the port for agents, where the server
// uses none, or without the feature.
func TestWhoIsNotBesideTheAPIServer(t *testing.T) {
	r, direct := startServer(t, byAgent), startServer(t, func(o *Options) { o.APIServers = []string{"127.0.0.1:1"} })
	plain := newBeside("b")
	plain.Hello.Features = nil
	for what, err := range map[string]error{
		"the port for agents": second(r.linked(r.agentAt, r.tls(link.ALPN), newBeside("b").Config)),
		"not used":            second(direct.linked(direct.tcp, direct.tls(link.ALPN), newBeside("b").Config)),
		"no feature":          second(r.linked(r.tcp, r.tls(link.ALPN), plain.Config)),
		"no id":               second(r.linked(r.tcp, r.tls(link.ALPN), newBeside("\n").Config)),
	} {
		testutil.Fails(t, err, "%s: it is taken", what)
	}
	testutil.Equal(t, r.own.beside.Counts().Agents, 0, "agents that are known")
}

func second(_ *link.Session, err error) error { return err }

// Where no agent is beside the API server, nodes are told, it is counted, and logged once
// for each time.
func TestNoAgentIsBesideTheAPIServer(t *testing.T) {
	log, said := logtest.NewNullLogger()
	r := startServer(t, byAgent, func(o *Options) { o.Log = log })
	lines := func() int { return testutil.Lines(said, "nodes do not reach their API server") }
	node := testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), apiAgent("node")))(t)
	for round := 1; round <= 2; round++ {
		for range 3 {
			_, err := askAPI(t, node)
			testutil.Requires(t, tunnel.FailureOf(err) == tunnel.FailNoAgent, "%v", err)
		}
		testutil.Holds(t, r.metric(fmt.Sprintf(`api_refusals_total{reason="alone"} %d`, 3*round)) && lines() == round,
			"round %d: %d lines, or it is not counted", round, lines())
		ses := newBeside("b").at(r)
		c := testutil.Must(askAPI(t, node))(t)
		_ = c.Close()
		_ = ses.Close()
		r.eventually("it is gone", func() bool { return r.own.beside.Counts().Agents == 0 })
	}
}

// A node waits for an agent beside the API server as clients do for agents: after the
// server's start, and where the only one was lost a moment ago.
func TestNodesWaitForAnAgentBesideTheAPIServer(t *testing.T) {
	r := startServer(t, byAgent, func(o *Options) { o.Settle, o.DialTimeout, o.ResumeWindow = time.Hour, time.Hour, time.Minute })
	node := testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), apiAgent("node")))(t)
	asks := func() <-chan error {
		answered := testutil.Later(func() error {
			c, err := askAPI(t, node)
			if err == nil {
				_ = c.Close()
			}
			return err
		})
		r.eventually("it waits", func() bool { return r.limits.PendingDials() == 1 })
		return answered
	}
	first := asks()
	resuming := apiAgent("resuming")
	resuming.Hello.Features = append(resuming.Hello.Features, link.FeatureResume)
	again := tunnel.NewFlow(link.NetworkAPI, link.APIAddress)
	again.Resume = &tunnel.Resume{Window: time.Minute, Epoch: 1, Route: "elsewhere"}
	_, err := testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), resuming))(t).Dial(testutil.Context(t), again)
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailAgentLost, "a request to resume: %v", err)
	conn := testutil.Must((&tls.Dialer{Config: r.tls(link.ALPN)}).DialContext(t.Context(), "tcp", r.tcp))(t)
	lost := testutil.Must(link.Connect(t.Context(), conn, newBeside("b").Config))(t)
	testutil.NoError(t, testutil.Receive(t, "an answer", first))
	_ = conn.(*tls.Conn).NetConn().Close()
	_ = lost.Close()
	r.eventually("it is lost", func() bool { return r.own.beside.Counts().Agents == 0 })
	second := asks()
	newBeside("b").at(r)
	testutil.NoError(t, testutil.Receive(t, "an answer", second))
}

// A tenant's nodes reach their own API server, and no other where theirs has no agent.
func TestTenantsHaveTheirOwnAgentsBesideTheAPIServer(t *testing.T) {
	s := startSharers(t, byAgent)
	nodes, agents := map[string]*link.Session{}, map[string]*link.Session{}
	for _, name := range []string{"red", "blue"} {
		c := s.addServed(name, "apiServers: [agent]")
		nodes[name] = testutil.Must(s.linked(s.agentAt, secureFor(c.serverName(), c.cert, link.ALPN), apiAgent("node")))(t)
		agents[name] = testutil.Must(s.linked(s.tcp, secureFor(c.serverName(), c.cert, link.ALPN), newBeside(name).Config))(t)
		s.eventually("it is known", func() bool { return c.cluster().beside.Counts().Agents == 1 })
	}
	for range 10 {
		for name, node := range nodes {
			c := testutil.Must(askAPI(t, node))(t)
			says(t, c, name)
			_ = c.Close()
		}
	}
	_ = agents["red"].Close()
	s.eventually("red's is gone", func() bool { _, err := askAPI(t, nodes["red"]); return tunnel.FailureOf(err) == tunnel.FailNoAgent })
	c := testutil.Must(askAPI(t, nodes["blue"]))(t)
	says(t, c, "blue")
	_ = c.Close()
}

// A node whose agent has more dials under way than one may, which are not answered, and
// connections whose bytes it does not read, leaves the others their part.
func TestANodesFloodLeavesTheOthersTheAPIServer(t *testing.T) {
	r := startServer(t, byAgent, func(o *Options) { o.DialTimeout = time.Hour })
	b := newBeside("b")
	b.Handler = hanging{b.Handler}
	b.at(r)
	secure := r.tls(link.ALPN) // nodes have one certificate
	flooder := testutil.Must(r.linked(r.agentAt, secure, apiAgent("flooder")))(t)
	other := testutil.Must(r.linked(r.agentAt, secure, apiAgent("other")))(t)
	var writing sync.WaitGroup
	defer writing.Wait()
	for range 30 {
		c := testutil.Must(askAPI(t, flooder))(t)
		defer func() { _ = c.Reset(io.EOF) }()
		writing.Go(func() {
			for junk, err := make([]byte, 64<<10), error(nil); err == nil; {
				_, err = c.Write(junk)
			}
		})
	}
	refused := r.hang(flooder, link.MaxDials, func() *tunnel.Flow {
		f := tunnel.NewFlow(link.NetworkAPI, link.APIAddress)
		f.ID = "hangs"
		return f
	})
	testutil.Requires(t, len(refused) != 0 && tunnel.FailureOf(refused[0]) == tunnel.FailExhausted,
		"one node may have all dials there are: %v", refused)
	for range 20 {
		c := testutil.Must(askAPI(t, other))(t)
		says(t, c, "b")
		r.roundTrip(c, 256<<10)
		_ = c.Close()
	}
}

// hanging does not answer requests with the id "hangs".
type hanging struct{ tunnel.Handler }

func (h hanging) Serve(ctx context.Context, f *tunnel.Flow, answer tunnel.Answer, ended func(error)) {
	if f.ID == "hangs" {
		<-ctx.Done()
		ended(context.Cause(ctx))
		return
	}
	h.Handler.Serve(ctx, f, answer, ended)
}

// A server that stops does not wait for nodes that cannot go on elsewhere.
func TestAServerLeavesNodesWithoutAnother(t *testing.T) {
	t.Parallel() // it waits
	r := startServer(t, byAgent, func(o *Options) { o.Grace, o.ResumeWindow = time.Hour, time.Minute })
	newBeside("b").at(r)
	c := testutil.Opened(r.fromNode("node"))(t)
	says(t, c, "b")
	r.stopped()
}

// Where servers forward, any of them leads to the agent beside the API server, and its
// connections are resumed by any.
func TestAnotherServersAgentBesideTheAPIServer(t *testing.T) {
	c := startCrew(t, 2, byAgent, func(o *Options) { o.ResumeWindow = time.Minute })
	opener, acceptor := resume.New(resume.Options{Window: time.Minute}), resume.New(resume.Options{Window: time.Minute})
	t.Cleanup(func() { opener.Close(); acceptor.Close(); opener.Wait(); acceptor.Wait() })
	b := newBeside("b")
	b.Handler = acceptor.Handler(b.Handler)
	b.at(c.servers[1])
	var by [2]*link.Session
	for i, r := range c.servers {
		node := apiAgent("node")
		node.Hello.Features = append(node.Hello.Features, link.FeatureResume)
		by[i] = testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), node))(t)
		r.eventually("it is known", func() bool { return r.own.beside.Registry.Ready() == nil })
	}
	next := 0
	conn, err := opener.Dialer(tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) { return by[next].Dial(ctx, f) })).
		Dial(testutil.Context(t), tunnel.NewFlow(link.NetworkAPI, link.APIAddress))
	testutil.NoError(t, err)
	defer conn.Close()
	says(t, conn, "b")
	c.servers[0].roundTrip(conn, 100<<10)
	for range 10 {
		if _, err := c.servers[0].dial("link", "x:1"); tunnel.FailureOf(err) != tunnel.FailDenied { // by the node's agent
			t.Errorf("a client reaches an agent that is none of a node: %v", err)
		}
	}
	next = 1
	_ = by[0].Close()
	c.servers[0].roundTrip(conn, 100<<10)
	n := acceptor.Stats()
	testutil.Holds(t, n.Resumes >= 1, "%+v", n) // or more, where an answer takes longer than an attempt
}
