package agent

import (
	"context"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// says is what a test server's API answers first: who it is.
func (s *testServer) says() tunnel.Handler {
	return &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.asked = append(s.asked, f.Network+" "+f.Address)
		if s.api != nil {
			return nil, s.api
		}
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			_, _ = io.WriteString(far, s.id+"\n")
			_, _ = io.Copy(far, far)
		}()
		return tunnel.Wrap(near), nil
	})}
}

// withAPI serves agents' requests from now on; err: it has no API server for them.
func (s *testServer) withAPI(err error) *testServer {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takesAPI, s.api = true, err
	return s
}

// onNode is where an agent's node reaches its API server.
func onNode(t *testing.T, opts *Options) (address string) {
	t.Helper()
	l := testutil.Listen(t)
	opts.API = append(opts.API, l)
	return l.Addr().String()
}

// asks returns what the API server says to a program of the node; "": it is reset, or
// closed.
func asks(t *testing.T, address string) string {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		return "" // the reset may come this early
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	all := make([]byte, 100)
	n, _ := c.Read(all)
	return strings.TrimSpace(string(all[:n]))
}

// A program of the node that connects before the agent has a link waits for it, and
// reaches the API server once it is there. The agent has named no address.
func TestNodeReachesItsAPIServerOnceThereIsALink(t *testing.T) {
	t.Parallel() // it waits
	s, opts := newServed(t, "s1", false)
	s.withAPI(nil).refuse = errRefusal
	opts.SyncInterval, opts.SyncIntervalCap = 10*time.Millisecond, 10*time.Millisecond
	at := onNode(t, &opts)
	a, _ := runAgent(t, opts)
	early := testutil.Later(func() string { return asks(t, at) })
	testutil.Eventually(t, "the early one waits", func() bool { return a.api.front.Slots.Count() == 1 })
	s.mu.Lock()
	s.refuse = nil
	s.mu.Unlock()
	testutil.Equal(t, testutil.Receive(t, "an answer", early), "s1", "who answers")
	s.mu.Lock()
	defer s.mu.Unlock()
	testutil.EqualSlices(t, s.asked, []string{link.NetworkAPI + " " + link.APIAddress}, "the server was asked for")
}

// A server that has no API server, or knows of none, is passed over; an answer of the API
// server's own is not.
func TestServersStandInForEachOther(t *testing.T) {
	t.Parallel() // it waits
	none := &tunnel.DialError{Failure: tunnel.FailUnavailable}
	down := &tunnel.DialError{Failure: tunnel.FailRefused}
	for name, c := range map[string]struct {
		servers func(ca *pki.CA) []*testServer
		want    string
	}{
		"one has none": {func(ca *pki.CA) []*testServer {
			return []*testServer{newTestServer(t, ca, "s1", false).withAPI(none), newTestServer(t, ca, "s2", false).withAPI(nil)}
		}, "s2"},
		"one is of before, one speaks gRPC": {func(ca *pki.CA) []*testServer {
			return []*testServer{newTestServer(t, ca, "s1", false), newTestServer(t, ca, "s2", true), newTestServer(t, ca, "s3", false).withAPI(nil)}
		}, "s3"},
		"all are of before": {func(ca *pki.CA) []*testServer {
			return []*testServer{newTestServer(t, ca, "s1", false), newTestServer(t, ca, "s2", true)}
		}, ""},
		"it is down": {func(ca *pki.CA) []*testServer { return []*testServer{newTestServer(t, ca, "s1", false).withAPI(down)} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ca, config := newCA(t)
			servers := c.servers(ca)
			opts := testOptions(config)
			for _, s := range servers {
				s.count = len(servers)
				opts.Servers = append(opts.Servers, s.address())
			}
			at := onNode(t, &opts)
			a, _ := runAgent(t, opts)
			testutil.Eventually(t, "all are connected", func() bool { return len(a.Servers()) == len(servers) })
			for range 4 {
				testutil.Equal(t, asks(t, at), c.want, "who answers")
			}
		})
	}
}

// While an agent drains, its node reaches the API server, and that does not hold up the
// drain.
func TestDrainDoesNotWaitForNodesPrograms(t *testing.T) {
	t.Parallel() // it waits
	s, opts := newServed(t, "s1", false)
	s.withAPI(nil)
	opts.Grace = time.Hour
	at := onNode(t, &opts)
	_, stop := runAgent(t, opts)
	c := testutil.Opened(net.Dial("tcp", at))(t)
	b := make([]byte, 3)
	testutil.Must(io.ReadFull(c, b))(t)
	testutil.NoError(t, stop())
	testutil.Fails(t, testutil.Err(c.Read(b)), "the connection goes on without an agent")
}

// What the node's programs have is counted apart from what servers ask for.
func TestNodesProgramsAreCounted(t *testing.T) {
	t.Parallel() // it waits
	s, opts := newServed(t, "s1", false)
	s.withAPI(nil)
	r := prometheus.NewRegistry()
	opts.Registerer = r
	at := onNode(t, &opts)
	a, _ := runAgent(t, opts)
	asks(t, at)
	testutil.Eventually(t, "it has ended", func() bool { return a.api.front.Slots.Count() == 0 })
	err := promtest.GatherAndCompare(r, strings.NewReader(`# HELP konnectivity_network_proxy_agent_api_bytes_total Payload carried to and from the API server, by direction.
# TYPE konnectivity_network_proxy_agent_api_bytes_total counter
konnectivity_network_proxy_agent_api_bytes_total{direction="from_api"} 3
konnectivity_network_proxy_agent_api_bytes_total{direction="to_api"} 0
# HELP konnectivity_network_proxy_agent_api_requests_total Number of connections of the node's programs to their API server, by outcome: ok, or why it was not reached.
# TYPE konnectivity_network_proxy_agent_api_requests_total counter
konnectivity_network_proxy_agent_api_requests_total{outcome="ok"} 1
`), "konnectivity_network_proxy_agent_api_bytes_total", "konnectivity_network_proxy_agent_api_requests_total")
	testutil.NoError(t, err)
	testutil.Equal(t, a.metrics.open.Load(), 0, "connections to destinations")
}

// outlived are two servers before one agent beside the API server, an agent of a node that
// is connected to both, and a connection of the node.
type outlived struct {
	servers  map[string]*testServer
	accepted *resume.Manager
	agent    *Agent
	stop     func() error
	at       string // where the node's programs connect
	conn     net.Conn
	by       string // the server that it went through first
}

// newOutlived has no connection yet.
func newOutlived(t *testing.T, settings ...func(*Options)) *outlived {
	ca, config := newCA(t)
	o := &outlived{servers: map[string]*testServer{}, accepted: resume.New(resume.Options{Window: time.Minute})}
	t.Cleanup(func() { o.accepted.Close(); o.accepted.Wait() })
	opts := testOptions(config)
	for _, id := range []string{"s1", "s2"} {
		s := newTestServer(t, ca, id, false).withAPI(nil)
		s.count, s.accepted = 2, o.accepted
		o.servers[id], opts.Servers = s, append(opts.Servers, s.address())
	}
	opts.ResumeWindow, opts.MaxServers = time.Minute, 2
	for _, set := range settings {
		set(&opts)
	}
	o.at = onNode(t, &opts)
	o.agent, o.stop = runAgent(t, opts)
	testutil.Eventually(t, "all are connected", func() bool { return len(o.agent.Servers()) == opts.MaxServers })
	return o
}

// connected has a connection.
func (o *outlived) connected(t *testing.T) *outlived {
	t.Helper()
	o.conn = testutil.Must(net.Dial("tcp", o.at))(t)
	t.Cleanup(func() { _ = o.conn.Close() })
	_ = o.conn.SetDeadline(time.Now().Add(patience))
	id := make([]byte, len("s1\n"))
	testutil.Must(io.ReadFull(o.conn, id))(t)
	o.by = strings.TrimSpace(string(id))
	return o
}

// echoes fails unless all that it writes comes back.
func (o *outlived) echoes(t *testing.T) {
	t.Helper()
	sent, got := strings.Repeat("watch", 50000), make([]byte, 250000)
	go func() { _, _ = io.WriteString(o.conn, sent) }()
	_, err := io.ReadFull(o.conn, got)
	testutil.Holds(t, err == nil && string(got) == sent, "it does not come back: %v", err)
}

func (o *outlived) resumes() int64 { return o.accepted.Stats().Resumes }

// Where the other end of a node's connection is an agent, the connection outlives the
// server that it goes through.
func TestNodesConnectionsOutliveServers(t *testing.T) {
	t.Parallel() // it waits
	o := newOutlived(t).connected(t)
	o.echoes(t)
	o.servers[o.by].close()
	o.echoes(t)
	testutil.Equal(t, o.resumes(), 1, "resumes")
	s := o.agent.Resuming()
	testutil.Holds(t, s.Resumes == 1 && s.Conns == 1, "its figures are %+v", s)
}

// A server that says that it goes is left before it does.
func TestNodesConnectionsMoveBeforeAServerLeaves(t *testing.T) {
	t.Parallel() // it waits
	o := newOutlived(t).connected(t)
	s := o.servers[o.by]
	s.mu.Lock()
	for _, l := range s.links {
		l.Drain()
	}
	s.mu.Unlock()
	testutil.Eventually(t, "it goes on by the other", func() bool { return o.resumes() == 1 })
	o.echoes(t)
	testutil.Eventually(t, "both servers are connected", func() (both bool) {
		stay := 0
		for _, s := range o.agent.Servers() {
			if !s.Draining { // the link that drains stays, since its server does not end
				stay++
			}
		}
		return stay == 2
	})
	time.Sleep(3 * firstMove)
	testutil.Equal(t, o.resumes(), 1, "resumes")
}

// What a node has open at its API server ends with its agent, and does not wait for the
// agent to come back.
func TestNodesConnectionsEndWithTheirAgent(t *testing.T) {
	t.Parallel() // it waits
	o := newOutlived(t).connected(t)
	testutil.NoError(t, o.stop())
	testutil.Eventually(t, "the API server is told", func() bool { return o.accepted.Len() == 0 })
	n, err := o.conn.Read(make([]byte, 1))
	testutil.Holds(t, err != nil, "%d bytes come of it", n)
}

// That the API server is not reached is logged once, until it is reached.
func TestNodesAreWarnedOfOnce(t *testing.T) {
	t.Parallel() // it waits
	none := &tunnel.DialError{Failure: tunnel.FailNoAgent}
	s, opts := newServed(t, "s1", false)
	s.withAPI(none)
	log, said := logtest.NewNullLogger()
	opts.Log = log
	at := onNode(t, &opts)
	a, _ := runAgent(t, opts)
	testutil.Eventually(t, "it is connected", func() bool { return len(a.Servers()) == 1 })
	for round := 1; round <= 2; round++ {
		s.withAPI(none)
		for range 3 {
			asks(t, at)
		}
		testutil.Eventually(t, "all have ended", func() bool { return a.api.front.Slots.Count() == 0 })
		testutil.Equal(t, testutil.Lines(said, "--api-bind: "), round, "lines in round %d", round)
		testutil.Equal(t, testutil.Lines(said, "connection failed"), 0, "lines about each")
		s.withAPI(nil)
		testutil.Equal(t, asks(t, at), "s1", "who answers")
	}
}

// A server that the agent leaves, since there is one that it prefers, gets no more of the
// node's connections, and what it had is moved once: its link stays while servers have
// connections there.
func TestNodesConnectionsAvoidAServerThatIsLeft(t *testing.T) {
	t.Parallel() // it waits
	o := newOutlived(t, func(opts *Options) {
		opts.MaxServers, opts.SyncInterval, opts.SyncIntervalCap = 1, 10*time.Millisecond, 100*time.Millisecond
	})
	connected := func() (ids []string) {
		for _, s := range o.agent.Servers() {
			ids = append(ids, s.ID)
		}
		return ids
	}
	preferred := o.servers[connected()[0]]
	left := o.servers[map[string]string{"s1": "s2", "s2": "s1"}[preferred.id]]
	preferred.next() // and has a link to close

	preferred.refuseAll(errRefusal)
	testutil.Eventually(t, "the other is connected", func() bool { return slices.Equal(connected(), []string{left.id}) })
	link := left.next().peer
	testutil.Opened(link.Dial(testutil.Context(t), tunnel.NewFlow("tcp", testutil.Echo(t))))(t)
	o.connected(t)
	preferred.refuseAll(nil)
	testutil.Receive(t, "the server is left", link.Drains().Done())
	testutil.Eventually(t, "the connection goes on elsewhere", func() bool { return o.resumes() > 0 })
	near := &tunnel.Flow{Resume: &tunnel.Resume{First: left.id}} // as the one with the shortest round trip is
	s, _, _ := pickAPI(o.agent.set.peers.Members(), nil, near)
	testutil.Holds(t, s.ServerID() == preferred.id, "the next connection goes by %s, which is left", s.ServerID())
	time.Sleep(2 * lastMove)
	testutil.Equal(t, o.resumes(), 1, "how often the connection was moved")
	testutil.Equal(t, len(connected()), 2, "servers that are connected")
}

// refuseAll has a server refuse agents, and end the links that it has, unless err is nil.
func (s *testServer) refuseAll(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.refuse = err; err != nil {
		for _, l := range s.links {
			go l.Close()
		}
	}
}

// Where the first server that is asked for a connection leads to an agent that does not know
// it, the other one is asked.
func TestNodesConnectionsAreAskedForByEachServer(t *testing.T) {
	t.Parallel() // it waits
	ca, config := newCA(t)
	opts := testOptions(config)
	for _, id := range []string{"s1", "s2"} {
		s := newTestServer(t, ca, id, false).withAPI(nil)
		accepted := resume.New(resume.Options{Window: time.Minute})
		t.Cleanup(func() { accepted.Close(); accepted.Wait() })
		s.count, s.accepted = 2, accepted
		opts.Servers = append(opts.Servers, s.address())
	}
	opts.ResumeWindow, opts.MaxServers, opts.Grace = time.Minute, 2, -1
	onNode(t, &opts)
	began := time.Now()
	a, _ := runAgent(t, opts)
	testutil.Eventually(t, "both are connected", func() bool { return len(a.Servers()) == 2 })
	for epoch, first := range []string{"s1", "s2"} {
		f := tunnel.NewFlow(link.NetworkAPI, link.APIAddress)
		f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: uint32(epoch), First: first}
		testutil.Must(a.api.dial(testutil.Context(t), f))(t)
		testutil.Equal(t, f.Hop.ID, "s1", "the server by which it goes on")
	}
	f := tunnel.NewFlow(link.NetworkAPI, link.APIAddress)
	f.Resume = &tunnel.Resume{Token: [16]byte{2}, Window: time.Minute, Epoch: 1}
	failure := tunnel.FailureOf(testutil.Err(a.api.dial(testutil.Context(t), f)))
	late := failure == tunnel.FailGone && time.Since(began) >= 10*time.Second // this machine is busy
	testutil.Holds(t, failure == tunnel.FailAgentLost || late, "the failure of one that is not there, while links are new, is %v", failure)
}

// Bounds are what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../docs/operations.md"
	testutil.Says(t, page, "An agent takes %v such connections at once", maxAPIConns)
	testutil.Says(t, page, "It looks for no more than %v servers", maxServers)
}
