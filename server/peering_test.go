package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/admin"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/registry"
	"konnectivity/server/routes"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// crew is servers that forward to one another.
type crew struct {
	ca        *pki.CA
	pair      pki.Pair
	at        []string
	listeners []net.Listener
	servers   []*rig
	judge     verdict // of all links between them
}

func newCrew(t *testing.T, n int) *crew {
	t.Helper()
	c := &crew{ca: testutil.Must(pki.NewCA("servers"))(t)}
	c.pair = testutil.Must(c.ca.Issue(pki.Leaf{CommonName: "server", DNS: []string{"server"}, Server: true, Client: true}))(t)
	for range n {
		l := testutil.Listen(t)
		c.listeners, c.at = append(c.listeners, l), append(c.at, l.Addr().String())
	}
	return c
}

// join makes a server's Options those of the i-th.
func (c *crew) join(i int) func(*Options) {
	return func(o *Options) {
		o.ID = fmt.Sprint("server-", i)
		o.Peering = &Peering{
			Listener: Listener{Listener: c.listeners[i], Recheck: c.judge.recheck, TLS: func(_ tlsreload.Choose, protos ...string) *tls.Config {
				return &tls.Config{Certificates: []tls.Certificate{c.pair.TLS()}, ClientCAs: c.ca.Pool(), ClientAuth: tls.RequireAndVerifyClientCert, NextProtos: protos}
			}},
			Addresses: c.at, ServerName: "server", TLS: c.client,
		}
	}
}

func (c *crew) client(name string, protos ...string) *tls.Config {
	return &tls.Config{RootCAs: c.ca.Pool(), ServerName: name, Certificates: []tls.Certificate{c.pair.TLS()}, NextProtos: protos}
}

// start starts n servers that are linked, each made by settings too.
func startCrew(t *testing.T, n int, settings ...func(*Options)) *crew {
	t.Helper()
	c := newCrew(t, n)
	for i := range n {
		c.servers = append(c.servers, startServer(t, append(settings, c.join(i))...))
	}
	testutil.Eventually(t, "all are linked, both ways", func() bool {
		for _, r := range c.servers {
			if len(r.peering.Links()) != 2*(n-1) {
				return false
			}
		}
		return true
	})
	return c
}

// known waits until all servers know of n agents.
func (c *crew) known(t *testing.T, n int) {
	t.Helper()
	testutil.Eventually(t, "all know of all agents", func() bool {
		for _, r := range c.servers {
			all := r.own.agents.Counts().Agents
			seen := map[string]bool{}
			for _, l := range r.peering.Links() {
				if id := l.Peer().ID; !seen[id] {
					seen[id] = true
					all += r.peering.Routes(l).Agents
				}
			}
			if all != n {
				return false
			}
		}
		return true
	})
}

// A link that the other side ends again and again is logged, though it is back at once.
func TestServersThatFlapAreLogged(t *testing.T) {
	log, said := logtest.NewNullLogger()
	c := startCrew(t, 2, func(o *Options) { o.Log = log })
	testutil.Eventually(t, "that is logged", func() bool {
		for _, l := range c.servers[0].peering.Links() {
			_ = l.Close()
		}
		return testutil.Lines(said, "ends again and again") > 0
	})
}

// Whichever server a client meets, by whatever protocol, it reaches the agent of any.
func TestServersForward(t *testing.T) {
	c := startCrew(t, 3, func(o *Options) {
		o.Strategies = []registry.Strategy{registry.DestHost, registry.DestCIDR, registry.DefaultRoute}
	})
	var asked [3]string
	for i, r := range c.servers {
		ids := fmt.Sprintf("host=h%d&cidr=10.%d.0.0/16&cidr=10.9.%d.0/24", i, i, i)
		if i == 2 {
			ids += "&default-route=true&cidr=10.9.0.0/16"
		}
		r.agent(agentKinds[i%2], agentHello{id: fmt.Sprint("agent-", i), identifiers: ids}, echoing)
		asked[i] = ids
	}
	c.known(t, 3)
	for _, r := range c.servers {
		for n, address := range []string{"h0:1", "h1:1", "h2:1", "10.0.0.1:1", "10.1.0.1:1", "10.2.0.1:1", "elsewhere:1", "10.9.1.1:1"} {
			conn := r.mustDial(clientKinds[n%len(clientKinds)], address)
			r.roundTrip(conn, 1000)
			conn.Close()
		}
		failedAs(t, testutil.Err(r.dial("link", "refused:1")), tunnel.FailRefused, "what the far agent says is lost")
	}
	if !c.servers[0].metric(`peer_faults_total{reason="tenant"} 0`) || c.servers[0].metric(`peer_dials_total{outcome="ok"} 0`) {
		t.Error("forwarded dials are not counted, or faults are where there are none")
	}
	testutil.Contains(t, fmt.Sprint(c.servers[0].adminPeers()), "server-1", "the other servers are not listed")
	for _, r := range c.servers {
		r.eventually("no dial counts as pending", func() bool { return r.limits.PendingDials() == 0 })
	}
}

// A server that cannot be linked is shown with the reason, until it can be, or is no longer
// one of the others.
func TestServersThatCannotBeLinkedAreShown(t *testing.T) {
	c := newCrew(t, 2)
	r := startServer(t, c.join(0))
	shown := func() []admin.Unlinked {
		var status admin.Status
		r.adminMore(&status)
		return status.Unlinked
	}
	l, ended := c.listeners[1].(*net.TCPListener), make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	r.eventually("it is shown", func() bool {
		all := shown()
		return len(all) == 1 && all[0].Address == c.at[1] && all[0].Cause != ""
	})
	testutil.NoError(t, l.SetDeadline(time.Now()))
	<-ended
	testutil.NoError(t, l.SetDeadline(time.Time{}))
	startServer(t, c.join(1))
	r.eventually("it is linked", func() bool { return len(shown()) == 0 })
}

// Servers tell each other how they are, one at a time on a link, unless they have no admin
// port. One that is silent is waited for until the deadline.
func TestServersTellTheirState(t *testing.T) {
	n := 0
	c := startCrew(t, 3, func(o *Options) {
		if n++; n == 3 {
			testutil.NoError(t, o.Admin.Close())
			o.Admin = nil
		}
	})
	r := c.servers[0]
	c.servers[1].agent("link", agentHello{id: "a"}, echoing)
	c.known(t, 1)
	stuck := func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
	fake := (&fakeServer{dials: stuck}).link(t, c)

	var got []string
	for patience := time.Second; ; patience *= 4 { // a busy machine takes longer to answer
		got = nil
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		members := r.peering.others(ctx)
		cancel()
		for _, m := range members {
			text := m.ID + " " + m.Error
			if m.State != nil {
				text = fmt.Sprintf("%s: ready %v, %v", m.ID, m.State.Status.Ready, m.State.Status.Peers)
			}
			got = append(got, text)
		}
		if len(got) == 3 && got[0] == "fake it does not tell its state in time" && got[1] == "server-1: ready true, map[agent:1 client:0 server:2]" && strings.Contains(got[2], "it has no admin port") {
			break
		}
		testutil.Requires(t, patience <= time.Minute, "%q", got)
	}

	again := func() (tunnel.Conn, error) { return fake.Dial(t.Context(), tunnel.NewFlow(link.NetworkState, "x:1")) }
	unread := testutil.Must(again())(t)
	failedAs(t, testutil.Err(again()), tunnel.FailExhausted, "the state is told twice at a time")
	unread.Close()
	r.eventually("it is told again", func() bool {
		conn, err := again()
		if err == nil {
			conn.Close()
		}
		return err == nil
	})
}

// A state without an end is not read to it.
func TestAStateWithoutEnd(t *testing.T) {
	c := startCrew(t, 1)
	(&fakeServer{dials: func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		near, far := net.Pipe()
		go func() {
			for piece := bytes.Repeat([]byte(" "), 64<<10); ; {
				if _, err := far.Write(piece); err != nil {
					return
				}
			}
		}()
		return tunnel.Wrap(near), nil
	}}).link(t, c)
	all := c.servers[0].peering.others(testutil.Context(t))
	testutil.Holds(t, len(all) == 1 && strings.HasPrefix(all[0].Error, "its state is not known: unexpected end"), "%+v", all)
}

// fakeServer is another server as an attacker, or a fault, would have it.
type fakeServer struct {
	*link.Session
	tells  []routes.Record
	dials  tunnel.DialerFunc
	dialed atomic.Int32
}

// Dial serves what a server asks the fake for.
func (f *fakeServer) serve(ctx context.Context, flow *tunnel.Flow) (tunnel.Conn, error) {
	if flow.Network != link.NetworkRoutes {
		f.dialed.Add(1)
		return f.dials(ctx, flow)
	}
	near, far := net.Pipe()
	go func() {
		var all []byte
		for _, r := range append(f.tells, routes.Record{Op: routes.All}) {
			all = r.Append(all)
		}
		if _, err := far.Write(all); err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, far)
	}()
	return tunnel.Wrap(near), nil
}

// link links the fake to the first server.
func (f *fakeServer) link(t *testing.T, c *crew) *fakeServer {
	t.Helper()
	f.Session = linkFake(t, c, f.serve)
	testutil.Eventually(t, "the fake is linked", func() bool { n, _ := c.servers[0].peering.count(); return n == len(c.servers) })
	return f
}

// linkFake is link for one that serve serves, and may be refused.
func linkFake(t *testing.T, c *crew, serve tunnel.DialerFunc) *link.Session {
	t.Helper()
	hello := link.Hello{Role: link.RoleServer, ID: "fake", Features: []string{link.FeatureForward, link.FeatureResume}}
	return testutil.Must(c.servers[0].linked(c.at[0], c.client("server", link.ALPN), link.Config{
		Hello: hello, Handler: &tunnel.Forwarder{Dialer: serve, DialTimeout: time.Hour}}))(t)
}

func there(k routes.Key) routes.Record { return routes.Record{Op: routes.There, Key: k} }

var anyAgent = there(routes.Key{Kind: routes.AnyAgent})

func noAgent(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
	return nil, &tunnel.DialError{Failure: tunnel.FailNoAgent, Reason: "there is none"}
}

// A server that lies is asked once for each dial, and never where there is an agent here.
func TestAServerThatLies(t *testing.T) {
	c := startCrew(t, 1)
	r := c.servers[0]
	fake := (&fakeServer{tells: []routes.Record{anyAgent}, dials: noAgent}).link(t, c)
	r.eventually("it is believed", func() bool { return r.Ready() == nil })
	_, err := r.dial("link", "x:1")
	testutil.Holds(t, tunnel.FailureOf(err) == tunnel.FailNoAgent && fake.dialed.Load() == 1, "%v after %d dials", err, fake.dialed.Load())
	r.hasMetrics(`peer_dials_total{outcome="no_agent"} 1`)
	r.agent("link", agentHello{id: "a"}, echoing)
	r.roundTrip(r.mustDial("link", "x:1"), 10)
	testutil.Equal(t, fake.dialed.Load(), 1, "how often it was asked")
	fake.Close()
	r.eventually("what it told is forgotten", func() bool { n, known := r.peering.count(); return n+known == 0 })
}

// Who tells more than there is room for is thrown out.
func TestAServerThatTellsTooMuch(t *testing.T) {
	c := startCrew(t, 1)
	r := c.servers[0]
	tells := make([]routes.Record, routes.MaxRoutes+1)
	for i := range tells {
		tells[i] = there(routes.Key{Kind: routes.Agent, Value: [16]byte{byte(i), byte(i >> 8), byte(i >> 16)}})
	}
	// Not by link, which waits for it to be linked: that may be over before the first look.
	r.ends("its link", linkFake(t, c, (&fakeServer{tells: tells, dials: noAgent}).serve).Done())
	r.eventually("it is counted, and what it told forgotten", func() bool {
		_, known := r.peering.count()
		return known == 0 && r.metric(`peer_faults_total{reason="full"} 1`)
	})
}

// A link for which there is no room is no fault of the other server's.
func TestMoreLinksThanThereIsRoomFor(t *testing.T) {
	c := startCrew(t, 1)
	r := c.servers[0]
	for range routes.MaxServers {
		_, _, err := r.peering.known.Join("", "", nil)
		testutil.NoError(t, err)
	}
	r.ends("its link", linkFake(t, c, new(fakeServer).serve).Done())
	r.hasMetrics(`peer_faults_total{reason="protocol"} 0`)
}

// A server that is told to stop while another links to it tells that one, too.
func TestALinkThatIsMadeInADrainIsDrained(t *testing.T) {
	c := startCrew(t, 1)
	asked, answer := make(chan struct{}), make(chan struct{})
	fake := &fakeServer{}
	r := c.servers[0]
	r.agent("link", agentHello{id: "a"}, echoing) // which does not leave, so the server waits for it
	ses := linkFake(t, c, func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		close(asked)
		<-answer
		return fake.serve(ctx, f)
	})
	<-asked
	began := time.Now()
	r.stop()
	r.silent("tcp", c.at[0]) // a moment after it has told those that are linked
	close(answer)
	late := time.Since(began) > leaveTime/2 // it may have left before it was answered
	select {
	case <-ses.Drains().Done():
	case <-ses.Done():
		testutil.Holds(t, ses.Drains().Happened() || late, "it is not told that the server drains")
	}
}

// A server that stands still holds up the dials that it was asked for until their clients
// give up, and they are given up there too.
func TestAServerThatIsFrozen(t *testing.T) {
	c := startCrew(t, 1)
	r := c.servers[0]
	asking, giveUp := context.WithCancel(t.Context())
	given := make(chan struct{})
	(&fakeServer{tells: []routes.Record{anyAgent}, dials: func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
		giveUp()
		<-ctx.Done()
		close(given)
		return nil, ctx.Err()
	}}).link(t, c)
	r.eventually("it is believed", func() bool { return r.Ready() == nil })
	_, err := testutil.Must(r.clientLink())(t).Dial(asking, tunnel.NewFlow("tcp", "x:1"))
	testutil.Fails(t, err, "a dial by a server that is frozen")
	r.ends("the dial at the frozen server", given)
}

// What was forwarded goes no farther: neither to another server, nor back, and not to a
// cluster that is not served here.
func TestForwardedOnce(t *testing.T) {
	c := startCrew(t, 1)
	r := c.servers[0]
	fake := (&fakeServer{tells: []routes.Record{anyAgent}, dials: noAgent}).link(t, c)
	r.eventually("it is believed", func() bool { return r.Ready() == nil })
	ask := func(tenant string) error {
		f := tunnel.NewFlow("tcp", "x:1")
		f.Client = &tunnel.Client{Tenant: tenant, Budget: link.NewBudget(1 << 20).Share()}
		conn, err := fake.Dial(testutil.Context(t), f)
		if err == nil {
			r.roundTrip(conn, 100)
			conn.Close()
		}
		return err
	}
	if err := ask(""); tunnel.FailureOf(err) != tunnel.FailNoAgent || fake.dialed.Load() != 0 {
		t.Errorf("%v, and it was forwarded %d times", err, fake.dialed.Load())
	}
	if err := ask("nobody"); tunnel.FailureOf(err) != tunnel.FailNoAgent || !strings.Contains(err.Error(), "does not serve the tenant") {
		t.Error(err)
	}
	r.hasMetrics(`peer_faults_total{reason="tenant"} 1`) // servers disagree about tenants
	r.agent("link", agentHello{id: "a"}, echoing)
	testutil.NoError(t, ask(""))
	r.hasMetrics(`requests_total{front="server",outcome="ok"} 1`)
	testutil.Opened(fake.Dial(t.Context(), tunnel.NewFlow(link.NetworkRoutes, "x:1")))(t)
	failedAs(t, testutil.Err(fake.Dial(t.Context(), tunnel.NewFlow(link.NetworkRoutes, "x:1"))), tunnel.FailExhausted, "routes are told twice on one link")
}

// A server that has this one's id, or one that is too long, is not linked, which shows with the
// reason. The server's own address is no such one.
func TestIDsOfServers(t *testing.T) {
	for id, want := range map[string]string{"server-0": "this server's own id, \"server-0\"", strings.Repeat("x", link.MaxID+1): "has 513 bytes"} {
		c := newCrew(t, 2)
		r := startServer(t, c.join(0))
		startServer(t, c.join(1), func(o *Options) { o.ID = id })
		var out []admin.Unlinked
		testutil.Eventually(t, "the other is not linked", func() bool {
			out = r.peering.unlinked()
			return len(out) > 0 && strings.Contains(out[0].Cause, want)
		})
		testutil.Holds(t, len(out) == 1 && out[0].Address == c.at[1], "%v", out)
	}
}

// A peer that does not name the feature, or is no server, is refused.
func TestOnlyServersAreLinked(t *testing.T) {
	c := startCrew(t, 1)
	for _, hello := range []link.Hello{
		{Role: link.RoleServer, ID: "old"},
		{Role: link.RoleAgent, ID: "agent", Features: []string{link.FeatureForward}},
		{Role: link.RoleClient, ID: "client", Features: []string{link.FeatureForward}},
	} {
		_, err := c.servers[0].linked(c.at[0], c.client("server", link.ALPN), link.Config{Hello: hello})
		testutil.Fails(t, err, "%+v is linked", hello)
	}
}

// A connection outlives the servers at both of its ends: its request to resume finds the
// agent wherever that is linked by then.
func TestResumedByAnotherServer(t *testing.T) {
	c := startCrew(t, 3, func(o *Options) { o.ResumeWindow = 30 * time.Second })
	opener, acceptor := resume.New(resume.Options{Window: 30 * time.Second}), resume.New(resume.Options{Window: 30 * time.Second})
	t.Cleanup(func() { opener.Close(); acceptor.Close(); opener.Wait(); acceptor.Wait() })
	features := []string{link.FeatureResume}
	agentAt := func(i int) *link.Session {
		r := c.servers[i]
		pair := testutil.Must(r.ca.Issue(pki.Leaf{CommonName: "agent", Client: true}))(t) // no identity but its id, as all have their own CA
		secure := &tls.Config{RootCAs: r.ca.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{pair.TLS()}, NextProtos: []string{link.ALPN}}
		return testutil.Must(r.linked(r.agentAt, secure, link.Config{
			Hello: link.Hello{Role: link.RoleAgent, ID: "a", Features: features}, Handler: acceptor.Handler(forwarder(echoing))}))(t)
	}
	var by atomic.Pointer[link.Session]
	sidecarAt := func(i int) {
		by.Store(testutil.Must(c.servers[i].clientLinkAs(c.servers[i].tls(link.ALPN), link.Hello{Role: link.RoleClient, ID: "sidecar", Features: features}))(t))
	}
	at2 := agentAt(2)
	c.known(t, 1)
	sidecarAt(0)
	conn, err := opener.Dialer(tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) { return by.Load().Dial(ctx, f) })).
		Dial(testutil.Context(t), tunnel.NewFlow("tcp", "x:1"))
	testutil.NoError(t, err)
	defer conn.Close()
	r := c.servers[0]
	r.roundTrip(conn, 100<<10)
	first := by.Load()
	sidecarAt(1)
	_ = first.Close()
	r.roundTrip(conn, 100<<10)
	agentAt(1)
	_ = at2.Close()
	r.roundTrip(conn, 100<<10)
	testutil.AtLeast(t, acceptor.Stats().Resumes, 2, "resumes")
}

// Two servers serve the same tenants. A client at one reaches the agent of its own cluster
// at the other, and no agent of another cluster.
func TestTenantsStayApartAmongServers(t *testing.T) {
	t.Parallel() // it waits
	c := newCrew(t, 2)
	first := startSharers(t, c.join(0))
	second := startSharers(t, c.join(1))
	c.servers = []*rig{first.rig, second.rig}
	var here, there []*sharer
	for _, name := range []string{"red", "blue"} {
		a := first.addServed(name, "")
		b := &sharer{of: second, name: name, ca: a.ca, cert: a.cert}
		b.write("")
		second.eventually(name+" is served", func() bool { return b.cluster() != nil })
		here, there = append(here, a), append(there, b)
	}
	red, blue := here[0], here[1]
	there[0].hasAgent()
	first.eventually("red's agent is known", func() bool { return red.cluster().agents.Ready() == nil })
	for _, kind := range sharedClients {
		conn, err := red.dial(kind, "x:1")
		testutil.Holds(t, err == nil && there[0].greets(conn), "%s: red's client does not come to red: %v", kind, err)
		testutil.Fails(t, testutil.Err(blue.dial(kind, "x:1")), "%s: blue's client comes to red", kind)
	}
	testutil.Fails(t, blue.cluster().agents.Ready(), "blue is ready by red's agent")
	testutil.NoError(t, os.RemoveAll(filepath.Join(second.folder, "red")))
	second.dir.Look()
	first.eventually("what a tenant had that is removed is forgotten", func() bool { _, known := first.peering.count(); return known == 0 })
}

// A cluster's agents that have more identifiers than one server may tell another of do not
// take the link between them from other clusters. An agent that leaves makes room for another.
func TestATenantsIdentifiersLeaveOthersTheLink(t *testing.T) {
	t.Parallel() // it waits
	if testing.Short() {
		t.Skip("it takes a quarter of a million identifiers")
	}
	c := newCrew(t, 2)
	first := startSharers(t, c.join(0))
	second := startSharers(t, c.join(1))
	red, blue := first.addServed("red", ""), first.addServed("blue", "")
	there := &sharer{of: second, name: "blue", ca: blue.ca, cert: blue.cert}
	there.write("")
	second.eventually("blue is served", func() bool { return there.cluster() != nil })
	second.eventually("they are linked", func() bool { return len(second.peering.Links()) == 2 })
	const each = 1000 // and no agent may have many more
	agent := func(n int) (*link.Session, error) {
		var many strings.Builder
		for i := range each {
			fmt.Fprintf(&many, "host=%x&", n+i)
		}
		return red.agentLink(link.Hello{Role: link.RoleAgent, ID: fmt.Sprint(n), Identifiers: many.String()})
	}
	var last *link.Session
	for n := 0; n <= routes.MaxRoutes; n += each {
		ses, err := agent(n)
		if err == nil {
			last = ses
			continue
		}
		testutil.Requires(t, strings.Contains(err.Error(), errNoRoutes.Reason), "with %d identifiers: %v", n, err)
		_ = last.Close()
		first.eventually("there is room for another", func() bool { _, err := agent(n); return err == nil })
		break
	}
	blue.hasAgent()
	second.eventually("blue's agent is known", func() bool { return there.cluster().agents.Ready() == nil })
	conn, err := there.dial("link", "x:1")
	testutil.Holds(t, err == nil && blue.greets(conn), "%v", err)
	second.hasMetrics(`peer_faults_total{reason="full"} 0`)
}
