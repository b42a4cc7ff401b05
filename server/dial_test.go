package server

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/server/registry"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// asked is how a client asks cl for a dial, of a connection that exists if it is to be
// resumed.
func asked(t *testing.T, cl *cluster, resume *tunnel.Resume) *tunnel.Flow {
	client, leave := cl.limits.Join("", nil, tunnel.Addr{Text: "192.0.2.1:1"})
	t.Cleanup(leave)
	f := tunnel.NewFlow("tcp", "x:1")
	f.Client, f.Resume = client, resume
	return f
}

// What a tenant's agents do not have is charged to it, and nobody else.
func TestDialsThatAreResumedInVain(t *testing.T) {
	s := startSharers(t)
	red, blue := s.add("red", "bounds: {dialsPerSecond: 10}"), s.add("blue", "")
	red.hasAgent() // so that the server has taken it up
	blue.hasAgent()
	for cl, want := range map[*cluster]bool{red.cluster(): true, blue.cluster(): false, s.own: false} {
		dialed := 0
		d := cl.newDialer()
		d.next = tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
			dialed++
			return nil, &tunnel.DialError{Failure: tunnel.FailGone}
		})
		for range 100 {
			_, _ = d.Dial(t.Context(), asked(t, cl, &tunnel.Resume{Window: time.Second, Epoch: 1}))
		}
		if refused := dialed < 50; refused != want { // 11 at once, and 10 a second
			t.Errorf("%q: %d of 100 were dialed", cl.name, dialed)
		}
	}
}

// What a tenant's clients have of its bounds keeps no node from its API server, nor the other way
// round, and the metrics say which bound refused. The rate of dials is for all that are asked for,
// also those that rules refuse, since these cost the server as much.
func TestBoundsOfClientsAndNodes(t *testing.T) {
	s := startSharers(t)
	const most = 3
	api := "\napiServers: [" + apiServer(t, "api") + "]"
	red, blue := s.addServed("red", fmt.Sprintf("bounds: {connections: %d}", most)+api), s.addServed("blue", "bounds: {dialsPerSecond: 1}\npolicy: {deny: [denied]}"+api)
	dials := map[*sharer]map[string]func() (tunnel.Conn, error){}
	for _, c := range []*sharer{red, blue} {
		agent := apiAgent("node")
		agent.Handler = forwarder(c.network)
		node := testutil.Must(s.linked(s.agentAt, secureFor(c.serverName(), c.cert, link.ALPN), agent))(t)
		c.has(1)
		client := testutil.Must(c.clientLink())(t)
		dials[c] = map[string]func() (tunnel.Conn, error){
			"client": func() (tunnel.Conn, error) { return client.Dial(t.Context(), tunnel.NewFlow("tcp", "denied:1")) },
			"node":   func() (tunnel.Conn, error) { return askAPI(t, node) },
		}
	}
	for who, dial := range dials[red] {
		for range most {
			testutil.Must(dial())(t)
		}
		failedAs(t, testutil.Err(dial()), tunnel.FailBound, "one more of a %s", who)
	}
	failed := map[tunnel.Failure]int{}
	for range 100 {
		failed[tunnel.FailureOf(testutil.Err(dials[blue]["client"]()))]++
	}
	bound := failed[tunnel.FailBound]
	testutil.Holds(t, bound != 0 && failed[tunnel.FailDenied]+bound == 100, "dials that rules refuse fail by %v", failed)
	testutil.Must(dials[blue]["node"]())(t)
	s.hasMetrics(`tenant_bound_refusals_total{bound="connections",tenant="red"} 2`, `tenant_bound_refusals_total{bound="memoryMiB",tenant="red"} 0`,
		fmt.Sprintf(`tenant_bound_refusals_total{bound="dialsPerSecond",tenant="blue"} %d`, bound))
}

// A dial is pending while it waits for agents that have yet to come.
func TestADialThatWaitsIsPending(t *testing.T) {
	r := startServer(t, func(o *Options) { o.Settle = time.Hour })
	dialed := make(chan error, 1)
	go func() { dialed <- testutil.Err(r.dial("connect-tls", "echo:1")) }()
	r.eventually("it is pending", func() bool { return r.metric("pending_backend_dials 1") })
	r.agent("link", agentHello{id: "a"}, echoing)
	testutil.NoError(t, <-dialed)
	r.eventually("it is not pending any more", func() bool { return r.metric("pending_backend_dials 0") })
}

// oneDestination is an API that allows all clients echo:1 alone, and nothing once it is closed.
type oneDestination struct {
	mu     sync.Mutex
	closed bool
	asked  int
}

func (o *oneDestination) Create(_ context.Context, ask kubeapi.SubjectAccessReviewSpec) (answer kubeapi.SubjectAccessReviewStatus, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.asked++
	answer.Allowed = !o.closed && ask.ResourceAttributes.Name == "echo" && ask.ResourceAttributes.Subresource == "1"
	return answer, nil
}

// Whatever protocol a client speaks, the API has a say in what it reaches, and only in new
// connections.
func TestAccessIsReviewed(t *testing.T) {
	api := &oneDestination{}
	r := startServer(t, func(o *Options) { o.AccessReviews = api })
	r.agent("link", agentHello{id: "a"}, echoing)
	began := time.Now()
	for _, kind := range clientKinds {
		open := r.mustDial(kind, "echo:1")
		testutil.Fails(t, testutil.Err(r.dial(kind, "echo:2")), "%s reaches what nobody may", kind)
		r.roundTrip(open, 1000)
	}
	r.failsToDial("echo:2", http.StatusForbidden, "does not let")
	r.hasMetrics(fmt.Sprintf("policy_denials_total %d", len(clientKinds)+2))
	if time.Since(began) < 10*time.Second { // as long as an answer holds: a busy machine asks again
		// By certificate and by socket they are two clients.
		r.hasMetrics(`access_review_duration_seconds_count{verdict="allowed"} 2`, `access_review_duration_seconds_count{verdict="denied"} 2`)
	}
	api.mu.Lock()
	defer api.mu.Unlock()
	asked := api.asked
	f := tunnel.NewFlow("tcp", "other:1")
	f.Resume = &tunnel.Resume{Epoch: 1}
	err := r.own.newDialer().review(t.Context(), f)
	testutil.Holds(t, err == nil && api.asked == asked, "a connection that is resumed is reviewed: %v", err)
}

// A client by link names the network of its dial. One that agents by gRPC cannot be asked for
// fails the dial, and nothing else: the agent has other clients' connections.
func TestOddNetworksHarmNoOthers(t *testing.T) {
	r := startServer(t)
	r.agent("grpc", agentHello{id: "a"}, echoing)
	others := r.mustDial("connect-tls", "echo:1")
	odd := testutil.Must(r.clientLink())(t)
	for _, network := range []string{"\xff", "udp"} {
		failedAs(t, testutil.Err(odd.Dial(testutil.Context(t), tunnel.NewFlow(network, "echo:1"))), tunnel.FailBadAddress, "%q", network)
	}
	r.roundTrip(others, 100)
}

// agentInMemory connects to nothing, and says that it did.
type agentInMemory struct{}

func (a agentInMemory) Dial(context.Context, *tunnel.Flow) (tunnel.Conn, error) { return nil, nil }

func (a agentInMemory) Ends() *tunnel.Event { return new(tunnel.Event) }

func (a agentInMemory) Drains() *tunnel.Event { return new(tunnel.Event) }

func (a agentInMemory) Streams() int { return 0 }

func (a agentInMemory) RTT() time.Duration { return 0 }

func (a agentInMemory) Err() error { return nil }

// Until a cluster's startup is over, a dial waits for an agent that serves it, though not so long
// that it times out. It is over some time after agents serve, or after the first dial where none
// comes.
func TestDialsWaitForAgentsThatHaveYetToCome(t *testing.T) {
	const host = "10.0.0.1:10250"
	for name, c := range map[string]struct {
		before, after string // identifiers of an agent that is there, and of one that joins 3 s after the dial; "": none
		begins        time.Duration
		patience      time.Duration // of the client; 0: no bound
		drains        time.Duration // behind the dial; 0: never
		origin        string        // another server that asks
		served        bool
		took          time.Duration
	}{
		"the first":                {"", "ipv4=10.0.0.1", 0, 0, 0, "", true, 3 * time.Second},
		"the first dial is late":   {"", "ipv4=10.0.0.1", time.Hour, 0, 0, "", true, 3 * time.Second},
		"the one that serves":      {"ipv4=10.0.0.2", "ipv4=10.0.0.1", 0, 0, 0, "", true, 3 * time.Second},
		"it is there":              {"ipv4=10.0.0.1", "", 0, 0, 0, "", true, 0},
		"another is there":         {"ipv4=10.0.0.2", "", time.Second, 0, 0, "", false, DefaultSettle - time.Second},
		"another joins":            {"", "ipv4=10.0.0.2", 0, 0, 0, "", false, registry.Patience},
		"none":                     {"", "", time.Hour, 0, 0, "", false, registry.Patience},
		"once it is over":          {"ipv4=10.0.0.2", "", DefaultSettle, 0, 0, "", false, 0},
		"a client that gives up":   {"", "", 0, time.Second, 0, "", false, time.Second},
		"a server that is stopped": {"", "", 0, 0, time.Second, "", false, time.Second},
		"another server asks":      {"", "ipv4=10.0.0.1", 0, 0, 0, "b", false, 0},
	} {
		testutil.Bubble(t, name, func(t *testing.T) {
			drains, drain := context.WithCancel(t.Context())
			s := &Server{opts: Options{Settle: DefaultSettle}, drains: drains}
			cl := &cluster{startup: s.newStartup()}
			cl.agents = registry.New(cl.startup.over, []registry.Strategy{registry.DestHost}, logging.Silent())
			join := func(identifiers string) {
				if identifiers == "" {
					return
				}
				parsed := testutil.Must(registry.ParseIdentifiers(identifiers))(t)
				joined := cl.agents.Join(registry.Agent{ID: identifiers, Identifiers: parsed}, agentInMemory{})
				t.Cleanup(func() { joined.Leave() })
				cl.serving()
			}
			join(c.before)
			time.Sleep(c.begins)
			time.AfterFunc(3*time.Second, func() { join(c.after) })
			if c.drains > 0 {
				time.AfterFunc(c.drains, drain)
			}
			ctx := t.Context()
			if c.patience > 0 {
				bounded, cancel := context.WithTimeout(ctx, c.patience)
				defer cancel()
				ctx = bounded
			}
			began := time.Now()
			dial := func(ctx context.Context, want time.Duration) {
				f := tunnel.NewFlow("tcp", host)
				f.Origin.Server = c.origin
				start := time.Now()
				cl.startup.asked()
				_, err := cl.agents.Dial(ctx, f)
				if took := time.Since(start); took != want || c.served != (err == nil) || err != nil && tunnel.FailureOf(err) != tunnel.FailNoAgent {
					t.Errorf("%v after %v, which began after %v", err, took, start.Sub(began))
				}
			}
			dial(ctx, c.took)
			if c.before+c.after == "" && c.drains == 0 {
				time.Sleep(time.Until(began.Add(firstAgent - time.Second)))
				dial(t.Context(), time.Second)
			}
			time.Sleep(firstAgent + DefaultSettle)
			drain()
		})
	}
	testutil.Holds(t, registry.Patience < tunnel.DefaultDialTimeout,
		"dials time out in %v, before they hear that there is no agent", tunnel.DefaultDialTimeout)
}

// The startup of a tenant ends when the tenant is removed, and leaves nothing behind until the
// server drains.
func TestStartupEndsWithItsCluster(t *testing.T) {
	s := &Server{opts: Options{Settle: time.Hour}, drains: t.Context()}
	cl := &cluster{startup: s.newStartup()}
	cl.config.Store(new(config))
	cl.drain()
	testutil.Holds(t, tunnel.Closed(cl.startup.over), "agents of a cluster that drains have yet to come")
}
