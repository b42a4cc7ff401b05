package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/lanes"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/resume"
)

// Links are lanes of one group only if everything is the same that their agent
// says and proves, and both sides take part.
func TestWhichLinksAreLanes(t *testing.T) {
	const group = "0123456789abcdef"
	key := laneKey{group: group, id: "a1", identity: "CN=a1", identifiers: "default-route=true"}
	with := func(change func(*laneKey)) laneKey { k := key; change(&k); return k }
	for name, c := range map[string]struct {
		first, second laneKey
		old           bool
		groups        int
	}{
		"the same":               {key, key, false, 1},
		"forged by another":      {key, with(func(k *laneKey) { k.identity = "CN=a2" }), false, 2},
		"by another id":          {key, with(func(k *laneKey) { k.id = "a2" }), false, 2},
		"with other identifiers": {key, with(func(k *laneKey) { k.identifiers = "" }), false, 2},
		"of another group":       {key, with(func(k *laneKey) { k.group = "fedcba9876543210" }), false, 2},
		"from one without lanes": {key, key, true, 2},
		"of no group":            {laneKey{id: "a1"}, laneKey{id: "a1"}, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var books laneBooks
			first, endFirst := joinLane(t, &books, c.first, false)
			second, endSecond := joinLane(t, &books, c.second, c.old)
			testutil.Requires(t, (first == second) == (c.groups == 1), "the second link is of another group")
			testutil.Equal(t, second.links, 3-c.groups, "links of the second link's group")
			testutil.Equal(t, books.leave(first), c.groups == 2, "the first link was the last of its group")
			testutil.Holds(t, books.leave(second), "the second link was not the last of its group")
			endFirst()
			endSecond()
			_, _ = first.Close(), second.Close()
			third, endThird := joinLane(t, &books, c.first, false)
			testutil.Holds(t, third != first, "a group that has ended took a link in")
			books.leave(third)
			testutil.Equal(t, books.known.Len(), 0, "groups are known at the end")
			endThird()
			_ = third.Close()
		})
	}
}

// Of links that come and go at the same time, the last of each group leaves for its first.
func TestEachGroupIsLeftOnce(t *testing.T) {
	var books laneBooks
	var began, left atomic.Int32
	var all sync.WaitGroup
	key := laneKey{group: "0123456789abcdef", id: "a1"}
	for range 16 {
		hello := link.Hello{Role: link.RoleAgent, ID: key.id, Group: key.group, Features: []string{link.FeatureLanes}}
		far, ses := linkOf(t, link.Config{Hello: hello}, link.Config{Hello: link.Hello{Role: link.RoleServer, Features: hello.Features}})
		all.Go(func() {
			g, first := books.join(key, ses)
			if first {
				began.Add(1)
				g.leave = func() { left.Add(1) }
			}
			runtime.Gosched()
			last := books.leave(g)
			if last {
				g.leave()
			}
			_, _ = ses.Close(), far.Close()
			if last {
				_ = g.Close()
			}
		})
	}
	all.Wait()
	testutil.Holds(t, began.Load() > 0 && left.Load() == began.Load(), "%d groups began, and %d were left", began.Load(), left.Load())
}

// joinLane joins a link to an agent, which end ends.
func joinLane(t *testing.T, books *laneBooks, key laneKey, old bool) (g *laneGroup, end func()) {
	t.Helper()
	server := link.Hello{Role: link.RoleServer, ID: "s1", Features: []string{link.FeatureLanes}}
	agent := link.Hello{Role: link.RoleAgent, ID: key.id, Group: key.group, Features: server.Features}
	if old {
		agent.Features = nil
	}
	far, ses := linkOf(t, link.Config{Hello: agent}, link.Config{Hello: server})
	g, first := books.join(key, ses)
	testutil.Equal(t, first, g.links == 1, "it is the first link of its group")
	return g, func() { _, _ = far.Close(), ses.Close() }
}

// linkOf links two processes by a pipe.
func linkOf(t *testing.T, near, far link.Config) (a, b *link.Session) {
	t.Helper()
	ca, cb := net.Pipe()
	accepted := make(chan *link.Session)
	go func() {
		ses, err := link.Accept(context.Background(), cb, far)
		testutil.Succeeds(t, err, "Accept")
		accepted <- ses
	}()
	a = testutil.Must(link.Connect(context.Background(), ca, near))(t)
	return a, <-accepted
}

// Bulk moves off the first lane of an agent and off that of a sidecar, with no byte
// lost, and what is small stays there. Where both have lanes, neither side undoes what
// the other has done.
func TestBulkMovesOffTheFirstLane(t *testing.T) {
	for name, c := range map[string]struct{ toServer, toAgent, moves int }{
		"agent":             {1, 2, 1},
		"sidecar":           {2, 1, 1},
		"agent and sidecar": {2, 2, 2}, // or one, whichever side looks first
	} {
		testutil.Bubble(t, name, func(t *testing.T) { testBulkMoves(t, c.toServer, c.toAgent, c.moves) })
	}
}

func testBulkMoves(t *testing.T, toServer, toAgent, moves int) {
	options := resume.Options{Window: 30 * time.Second, Budget: link.NewBudget(1 << 30)}
	opener, agent := resume.New(options), resume.New(options)
	defer opener.Wait()
	defer agent.Wait()
	echo := tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(far, far); _ = far.Close() }()
		return tunnel.Wrap(near), nil
	})
	agents, endAgents := groupOf(t, toAgent, link.RoleServer, link.RoleAgent, agent.Handler(&tunnel.Forwarder{Dialer: echo}))
	sidecar, endSidecar := groupOf(t, toServer, link.RoleClient, link.RoleServer, resume.Splice(&tunnel.Forwarder{Dialer: agents}))
	defer func() {
		opener.Close()
		agent.Close()
		endSidecar()
		endAgents()
	}()
	dialer := opener.Dialer(sidecar)
	open := func() (tunnel.Conn, *tunnel.Flow) {
		f := tunnel.NewFlow("tcp", "example.test:80")
		return testutil.Must(dialer.Dial(t.Context(), f))(t), f
	}
	small, smallFlow := open()
	bulk, bulkFlow := open()
	for _, g := range []*lanes.Group{sidecar, agents} {
		n := g.Sessions()[0].Streams()
		testutil.Requires(t, n == 2, "%d of two new streams are on the first lane", n)
	}
	message := make([]byte, 512<<10)
	random := rand.NewChaCha8([32]byte{})
	for range 10 {
		_, _ = random.Read(message)
		go func() { _, _ = bulk.Write(message) }()
		got := make([]byte, len(message))
		_, err := io.ReadFull(bulk, got)
		testutil.Requires(t, err == nil && bytes.Equal(got, message), "bulk came back changed: %v", err)
		if _, err := small.Write(got[:1]); err != nil { // or nobody is held up
			t.Fatal(err)
		}
		testutil.Must(io.ReadFull(small, got[:1]))(t)
		time.Sleep(700 * time.Millisecond)
	}
	for _, g := range []*lanes.Group{sidecar, agents} {
		if all := g.Sessions(); len(all) == 2 && (all[0].Streams() != 1 || all[1].Streams() != 1) {
			t.Errorf("%d streams on the first lane, %d on the second; want one on each", all[0].Streams(), all[1].Streams())
		}
	}
	testutil.Between(t, bulkFlow.Resumable.ResumeStatus().Resumes, 1, moves, "how often bulk moved")
	testutil.Equal(t, smallFlow.Resumable.ResumeStatus().Resumes, 0, "how often the small one moved")
	_, _ = small.Close(), bulk.Close()
}

// groupOf links two processes by so many lanes, which end ends. serve is what far serves.
func groupOf(t *testing.T, n int, near, far link.Role, serve tunnel.Handler) (g *lanes.Group, end func()) {
	t.Helper()
	hello := func(r link.Role) link.Hello {
		return link.Hello{Role: r, ID: "x", Features: []string{link.FeatureResume, link.FeatureLanes}}
	}
	var farEnds []*link.Session
	for range n {
		a, b := linkOf(t, link.Config{Hello: hello(near)}, link.Config{Hello: hello(far), Handler: serve})
		farEnds = append(farEnds, b)
		if g == nil {
			g = lanes.New(a, lanes.Options{})
		} else {
			g.Add(a)
		}
	}
	return g, func() {
		_ = g.Close()
		for _, ses := range farEnds {
			_ = ses.Close()
		}
	}
}

// A sidecar's links of one group count as one client; those of another process, or
// by another certificate, or without lanes, as their own.
func TestLanesOfASidecar(t *testing.T) {
	t.Parallel() // it waits
	r := startServer(t)
	r.agent("link", agentHello{id: "a1"}, echoing)
	own := r.tls(link.ALPN)
	stranger := r.tlsOf("stranger", link.ALPN)
	key := link.Hello{Role: link.RoleClient, ID: "c1", Group: "0123456789abcdef", Features: []string{link.FeatureLanes}}
	with := func(change func(*link.Hello)) link.Hello { h := key; change(&h); return h }
	lane := func(config *tls.Config, hello link.Hello) *link.Session {
		return testutil.Must(r.clientLinkAs(config, hello))(t)
	}
	first, second := lane(own, key), lane(own, key)
	testutil.Requires(t, first.Lanes(), "the server takes no part in lanes")
	has := func(clients, lanes int) {
		t.Helper()
		r.eventually(fmt.Sprintf("%d clients, %d lanes of the first", clients, lanes), func() bool {
			n, most := 0, 0
			for _, p := range ask[admin.Page[admin.Peer]](r, "peers").Items {
				if p.Role == admin.RoleClient {
					n, most = n+1, max(most, p.Lanes)
				}
			}
			return n == clients && most == lanes && ask[admin.Status](r, "status").Peers["client"] == clients &&
				r.metric(fmt.Sprintf(`link_sessions{peer="client"} %d`, clients))
		})
	}
	has(1, 2)
	for i, ses := range []*link.Session{first, second} {
		c := testutil.Must(ses.Dial(t.Context(), tunnel.NewFlow("tcp", "echo:1")))(t)
		r.roundTrip(c, 1000+i)
	}
	for i, other := range []struct {
		tls   *tls.Config
		hello link.Hello
	}{
		{stranger, key},
		{own, with(func(h *link.Hello) { h.ID = "c2" })},
		{own, with(func(h *link.Hello) { h.Group = "fedcba9876543210" })},
		{own, with(func(h *link.Hello) { h.Features = nil })},
		{own, with(func(h *link.Hello) { h.Group = "" })},
	} {
		lane(other.tls, other.hello)
		has(2+i, 2)
	}
	r.own.peers.count(9)
	r.eventually("both lanes to be told", func() bool { return first.ServerCount() == 9 && second.ServerCount() == 9 })
	// One that shook hands before, and joins now, has not heard of it.
	why := link.Serving{Told: true, Why: "no agent"}
	r.own.peers.tellServing(func() link.Serving { return why })
	late := lane(own, key)
	r.eventually("a late lane to be told", func() bool { return late.ServerCount() == 9 && late.Serving() == why })
	_ = late.Close()
	has(6, 2)
	_ = first.Close()
	has(6, 1)
	_ = second.Close()
	has(5, 1)
	lane(own, key) // the group that has ended takes nobody in
	has(6, 1)
}

// A link that its process has lost ends at once, though it answers, and no word is said on it. One
// that calls itself the same, or knows the group, has no other's link ended.
func TestLostLinksAreReplaced(t *testing.T) {
	t.Parallel() // it waits
	r := startServer(t)
	group := func(n int) string { return fmt.Sprintf("%0*d", link.GroupSize, n) }
	own, stranger := r.tls(link.ALPN), r.tlsOf("stranger", link.ALPN)
	for at, role := range map[string]link.Role{r.agentAt: link.RoleAgent, r.tcp: link.RoleClient} {
		same := link.Hello{Role: role, ID: "one", Identifiers: "ipv4=10.0.0.1", Features: []string{link.FeatureLanes}}
		join := func(config *tls.Config, hello link.Hello, n int, lost ...int) *link.Session {
			hello.Group = group(n)
			for _, of := range lost {
				hello.Lost += group(of)
			}
			ses := testutil.Must(r.linked(at, config, link.Config{Hello: hello, Handler: forwarder(echoing)}))(t)
			_, err := ses.Dial(t.Context(), tunnel.NewFlow("tcp", "refused:1"))
			testutil.Fails(t, err, "a dial, which is answered once the link has joined")
			return ses
		}
		victims := []*link.Session{join(own, same, 0), join(own, same, 0), join(own, same, 1)}
		another, others := same, same
		another.ID, others.Identifiers = "two", "ipv4=10.0.0.2"
		for i, c := range []struct {
			tls   *tls.Config
			hello link.Hello
		}{{stranger, same}, {own, another}, {own, others}} {
			if role == link.RoleClient && c.hello.ID == same.ID && c.tls == own {
				continue // it is the same
			}
			before := join(c.tls, c.hello, 10+i)
			join(c.tls, c.hello, 20+i, 0, 1, 10+i)
			testutil.Receive(t, "the forger's own link ends, behind others'", before.Done())
		}
		for _, ses := range victims {
			testutil.NoError(t, ses.Err())
		}
		next := join(own, same, 2, 99, 0)
		for _, ses := range victims[:2] {
			testutil.Receive(t, "the link ends", ses.Done())
			testutil.Equal(t, tunnel.LossOf(ses.Err()), tunnel.LossCut, "why, as far as its peer knows")
		}
		testutil.Holds(t, victims[2].Err() == nil && next.Err() == nil, "a link ended that was not lost: %v, %v", victims[2].Err(), next.Err())
	}
}

// A lane that an agent adds later hears what was told while it shook hands.
func TestLateLaneOfAnAgentIsTold(t *testing.T) {
	r := startServer(t)
	hello := link.Hello{Role: link.RoleAgent, ID: "a", Group: "0123456789abcdef", Features: []string{link.FeatureLanes}}
	lane := func() *link.Session {
		return testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), link.Config{Hello: hello, Handler: forwarder(echoing)}))(t)
	}
	first := lane()
	r.eventually("the agent is known", func() bool { return len(r.own.agents.Agents()) == 1 })
	r.own.peers.count(7)
	r.eventually("the first lane to be told", func() bool { return first.ServerCount() == 7 })
	late := lane()
	r.eventually("the late one to be told", func() bool { return late.ServerCount() == 7 })
	testutil.Equal(t, len(r.own.agents.Agents()), 1, "connections of agents, of which one has two lanes")
}
