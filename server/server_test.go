package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
	"konnectivity/server/auth"
	"konnectivity/server/registry"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

func TestEveryClientThroughEveryAgent(t *testing.T) {
	for _, agents := range agentKinds {
		t.Run("agent-"+agents, func(t *testing.T) {
			r := startServer(t)
			a := r.agent(agents, agentHello{id: "a1"}, echoing)
			testutil.Equal(t, a.ServerCount(), 3, "servers that the agent was told of")
			testutil.EachOf(t, clientKinds, func(t *testing.T, kind string) {
				r := *r
				r.t = t
				c := r.mustDial(kind, "a.example:80")
				r.roundTrip(c, 1<<20)
				c.Close()
			})
			r.eventually("all is closed", func() bool {
				return r.metric("established_connections 0", "http_connections 0", "pending_backend_dials 0")
			})
			r.hasMetrics(`requests_total{front="grpc",outcome="ok"} 2`, `requests_total{front="connect",outcome="ok"} 2`, `requests_total{front="link",outcome="ok"} 1`,
				fmt.Sprintf(`forwarded_bytes_total{direction="to_destination"} %v`, float64(5<<20)),
				fmt.Sprintf(`forwarded_bytes_total{direction="to_client"} %v`, float64(5<<20)))
		})
	}
}

// What upstream's dashboards read of the packet protocol moves over links, too.
func TestLinksFeedUpstreamsMetrics(t *testing.T) {
	r := startServer(t)
	a := r.agent("link", agentHello{id: "a1"}, echoing)
	c := r.mustDial("link", "a.example:80")
	r.roundTrip(c, 1<<20)
	r.hasMetrics(`grpc_connections{service_method="Connect"} 1`, `grpc_connections{service_method="Proxy"} 0`, "http_connections 1")
	c.Close()
	packets := func(kind, segment string) string {
		return `stream_packets_total{packet_type="` + kind + `",segment="` + segment + `"} `
	}
	r.eventually("every packet is counted", func() bool {
		return r.metric(
			packets("DIAL_REQ", "from_client")+"1", packets("DIAL_REQ", "to_agent")+"1",
			packets("DIAL_RSP", "from_agent")+"1", packets("DIAL_RSP", "to_client")+"1",
			packets("CLOSE_REQ", "from_client")+"1", packets("CLOSE_REQ", "to_agent")+"1",
			packets("CLOSE_RSP", "from_agent")+"1", packets("CLOSE_RSP", "to_client")+"1",
			packets("DIAL_REQ", "from_agent")+"0", "http_connections 0")
	})
	for _, segment := range []string{"from_client", "to_client", "from_agent", "to_agent"} {
		testutil.Holds(t, !r.metric(packets("DATA", segment)+"0"), "no DATA %s after 1 MiB each way", segment)
	}
	a.Close() // says goodbye
	r.eventually("the agent is gone", func() bool { return r.metric(`grpc_connections{service_method="Connect"} 0`) })
	testutil.Holds(t, !r.metric(`stream_errors_total{code="Unavailable",packet_type="Unknown",segment="from_agent"} 1`),
		"an agent that went in order counts as an error")
}

// A link that is lost counts as one error of its agent's stream; gRPC counts its own.
func TestLostLinksCountAsErrors(t *testing.T) {
	for _, kind := range agentKinds {
		r := startServer(t)
		wires := make(chan net.Conn, 1)
		dial := func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, "tcp", r.agentAt)
			if err == nil {
				wires <- c
			}
			return c, err
		}
		if kind == "link" {
			wire := tls.Client(testutil.Must(dial(t.Context(), ""))(t), r.tls(link.ALPN))
			ses := testutil.Must(link.Connect(t.Context(), wire, link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "a"}}))(t)
			defer ses.Close()
		} else {
			conn := testutil.Must(grpc.NewClient(r.agentAt, grpc.WithContextDialer(dial), grpc.WithTransportCredentials(credentials.NewTLS(r.tls()))))(t)
			defer conn.Close()
			ses := testutil.Must(legacy.ConnectAgent(t.Context(), conn, legacy.AgentConfig{ID: "a", Forwarder: forwarder(echoing)}))(t)
			defer ses.Close()
		}
		r.eventually("the agent is known", func() bool { return len(r.own.agents.Agents()) == 1 })
		_ = (<-wires).Close()
		r.eventually("the agent is gone", func() bool { return r.metric(`grpc_connections{service_method="Connect"} 0`) })
		counted := r.metric(`stream_errors_total{code="Unavailable",packet_type="Unknown",segment="from_agent"} 1`)
		testutil.Equal(t, counted, kind == "link", "%s: the loss counts as that of a link", kind)
	}
}

// A client by link hears whether an agent serves, at once and as that changes.
func TestLinksHearWhetherAgentsServe(t *testing.T) {
	r := startServer(t)
	ses := testutil.Opened(r.clientLink())(t)
	said := ses.Serving()
	testutil.Holds(t, said.Told && said.Why == "no connection to any proxy agent", "without an agent: %+v", said)
	a := r.agent("grpc", agentHello{id: "a1"}, echoing)
	r.eventually("an agent is told of", func() bool { return ses.Serving() == link.Serving{Told: true} })
	a.Close()
	r.eventually("its going is told of", func() bool { return ses.Serving().Why != "" })
}

func TestFailuresAsClientsSeeThem(t *testing.T) {
	t.Parallel() // it waits
	testutil.EachOf(t, agentKinds, func(t *testing.T, agents string) {
		t.Parallel() // it waits
		r := startServer(t)
		_, err := r.dial("connect-uds", "x:1")
		testutil.Holds(t, isStatus(err, 503, "no agent"), "without an agent: %v", err)
		r.agent(agents, agentHello{id: "a1"}, echoing)
		for _, tc := range []struct {
			address string
			status  int
			says    string
		}{
			{"refused:1", 502, "connection refused"},
			{"unknown:1", 502, "no such host"},
			{"noport", 400, "host:port"},
			{strings.Repeat("n", 300) + ":1", 400, "253"},
			{"169.254.169.254:80", 403, "not allowed"},
		} {
			r.failsToDial(tc.address, tc.status, tc.says)
		}
		r.hasMetrics(
			`dial_failure_count{reason="no_agent"} 1`,
			`dial_failure_count{reason="error_response"} 10`, // 2 × 4 fronts, 2 of them refused by policy
			`policy_denials_total 2`, `pending_backend_dials 0`)

		slow := startServer(t, func(o *Options) { o.DialTimeout = 1500 * time.Millisecond })
		slow.agent(agents, agentHello{id: "a1"}, echoing)
		slow.failsToDial("silent:1", 504, "timeout")
		slow.hasMetrics(`dial_failure_count{reason="backend_dial_timeout"} 4`)
	})
}

// failsToDial says by every front what a client hears.
func (r *rig) failsToDial(address string, status int, says string) {
	r.t.Helper()
	for _, kind := range []string{"connect-tls", "connect-uds"} {
		_, err := r.dial(kind, address)
		testutil.Holds(r.t, isStatus(err, status, says), "%s to %.20s: %v, want %d %q", kind, address, err, status, says)
	}
	if status == 400 || status == 403 {
		return
	}
	testutil.ErrorSays(r.t, testutil.Err(r.dial("grpc-uds", address)), says, "by gRPC to %s", address)
	_, err := r.dial("link", address)
	testutil.Holds(r.t, tunnel.FailureOf(err).HTTPStatus() == status, "by link to %s: %v", address, err)
}

func isStatus(err error, code int, says string) bool {
	var s *statusError
	return errors.As(err, &s) && s.code == code && strings.Contains(s.body, says)
}

// Of an agent's connections, which one it drops does not matter: its coming and its going
// are logged once.
func TestAgentsAreLoggedOnce(t *testing.T) {
	for _, kind := range agentKinds {
		log, said := logtest.NewNullLogger()
		log.SetLevel(logrus.DebugLevel)
		r := startServer(t, func(o *Options) { o.Log = log })
		first := r.agent(kind, agentHello{id: "a1"}, echoing)
		second := r.agent(kind, agentHello{id: "a1"}, echoing)
		third := r.agent(kind, agentHello{id: "a1"}, echoing)
		for i, c := range []agent{first, second, third} {
			testutil.Equal(t, testutil.Lines(said, "agent gone", logrus.InfoLevel), 0, "%s: lines about its end while it is connected", kind)
			c.Close()
			r.eventually("one more has gone", func() bool { return testutil.Lines(said, "agent gone") == i+1 })
		}
		testutil.Equal(t, testutil.Lines(said, "agent connected", logrus.InfoLevel), 1, "%s: lines about its start", kind)
		testutil.Equal(t, testutil.Lines(said, "agent gone", logrus.InfoLevel), 1, "%s: lines about its end", kind)
	}
}

// lively is an agentInMemory whose connection ends.
type lively struct {
	agentInMemory
	ends *tunnel.Event
}

func (a lively) Ends() *tunnel.Event { return a.ends }

// Of an agent's connections that come, or end, at the same instant, one is logged.
func TestAgentsThatEndAtOnceAreLoggedOnce(t *testing.T) {
	log, said := logtest.NewNullLogger()
	r := startServer(t, func(o *Options) { o.Log = log })
	var ends tunnel.Event
	leave := make([]func(), 8)
	var joining sync.WaitGroup
	for i := range leave {
		joining.Go(func() {
			leave[i] = r.own.join(t.Context(), r.own.agents, registry.Agent{ID: "a"}, lively{ends: &ends}, &peer{drain: func() {}})
		})
	}
	joining.Wait()
	ends.Happen()
	r.eventually("all are out of the registry", func() bool { return len(r.own.agents.Agents()) == 0 })
	for _, leave := range leave {
		leave()
	}
	for _, text := range []string{"agent connected", "agent gone"} {
		testutil.Equal(t, testutil.Lines(said, text), 1, "lines %q", text)
	}
}

// TestAgentThatDiesBeforeItAnswers: callers hear of it, long before their dials
// run out of time, or another agent serves them.
func TestAgentThatDiesBeforeItAnswers(t *testing.T) {
	for _, agents := range agentKinds {
		r := startServer(t, func(o *Options) { o.DialTimeout = time.Hour })
		asked := make(chan struct{}, 10)
		hang := func(ctx context.Context, _ string) (tunnel.Conn, error) {
			asked <- struct{}{}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		refuse := func(context.Context, string) (tunnel.Conn, error) {
			return nil, &tunnel.DialError{Failure: tunnel.FailRefused}
		}
		a := r.agent(agents, agentHello{id: "a1"}, hang)
		for _, kind := range clientKinds {
			failed := testutil.Later(func() error { return testutil.Err(r.dial(kind, "x:1")) })
			<-asked
			if kind == clientKinds[0] {
				r.eventually("pending", func() bool { return r.metric("pending_backend_dials 1") })
			}
			a.Close()
			r.eventually("it is gone", func() bool { return len(r.own.agents.Agents()) == 0 })
			a = r.agent(agents, agentHello{id: "a1"}, refuse) // or the dial would wait for it
			select {
			case err := <-failed:
				testutil.Fails(t, err, "the dial by %s", kind)
			case <-time.After(40 * time.Second): // some milliseconds are usual; by CONNECT, it gives up after a minute
				t.Fatalf("%s through %s: the caller hangs", kind, agents)
			}
			a.Close()
			r.eventually("that one is gone, too", func() bool { return len(r.own.agents.Agents()) == 0 })
			a = r.agent(agents, agentHello{id: "a1"}, hang)
		}

		// With another agent the caller does not notice.
		c := testutil.Later(func() error { return testutil.Err(r.dial("connect-uds", "x:1")) })
		<-asked
		r.agent("link", agentHello{id: "a2"}, echoing)
		a.Close()
		testutil.Succeeds(t, <-c, "not retried on the other agent")
	}
}

func TestHealthMetricsAndStatus(t *testing.T) {
	r := startServer(t, func(o *Options) {
		o.Strategies = []registry.Strategy{registry.DestHost, registry.DefaultRoute}
		o.Profiles = true
	})
	expect := func(at, path string, code int, says string) {
		t.Helper()
		got, body := r.get(at, path)
		testutil.Holds(t, got == code && strings.Contains(body, says), "%s: %d %q, want %d %q", path, got, body, code, says)
	}
	expect(r.health, "/healthz", 200, "ok")
	expect(r.health, "/readyz", 500, "no connection to any proxy agent")
	expect(r.health, "/ready", 500, "no connection to any proxy agent")
	r.hasMetrics( // from the start
		"ready_backend_connections 0", `ready_backends{proxy_strategy="destHost"} 0`, `ready_backends{proxy_strategy="defaultRoute"} 0`,
		"pending_backend_dials 0", "established_connections 0", `grpc_connections{service_method="Connect"} 0`, "draining 0")
	r.agent("grpc", agentHello{id: "a1", identifiers: "ipv4=10.0.0.1"}, echoing)
	expect(r.health, "/readyz", 500, "default-route=true")
	a2 := r.agent("link", agentHello{id: "a2", identifiers: "default-route=true"}, echoing)
	expect(r.health, "/readyz", 200, "ok")
	r.hasMetrics(
		"ready_backend_connections 2", `ready_backends{proxy_strategy="destHost"} 1`, `ready_backends{proxy_strategy="defaultRoute"} 1`,
		`grpc_connections{service_method="Connect"} 2`, `agent_connections{protocol="grpc"} 1`, `agent_connections{protocol="link"} 1`)
	expect(r.admin, "/metrics", 200, "ready_backends")
	expect(r.admin, "/debug/pprof/", 200, "goroutine")
	expect(r.admin, "/api/v1/peers", 200, `"id":"a2"`)
	a2.Close()
	r.eventually("not ready", func() bool { code, _ := r.get(r.health, "/readyz"); return code == 500 })

	plain := startServer(t)
	code, _ := plain.get(plain.admin, "/debug/pprof/")
	testutil.Holds(t, code == 404, "profiles are served unasked: %d", code)
}

func TestModes(t *testing.T) {
	for name, c := range map[string]struct {
		set     func(*Options)
		agent   string
		serves  string // these and no other clients
		refuses string // agents by that protocol; "": none
	}{
		"grpc":          {func(o *Options) { o.NoConnect = true }, "link", "grpc link", ""},
		"http-connect":  {func(o *Options) { o.NoGRPC = true }, "grpc", "connect link", ""},
		"link off":      {func(o *Options) { o.NoLink = true }, "grpc", "connect grpc", "link"},
		"link required": {func(o *Options) { o.AgentsNeedLink = true }, "link", "connect grpc link", "grpc"},
	} {
		t.Run(name, func(t *testing.T) {
			r := startServer(t, c.set)
			r.agent(c.agent, agentHello{id: "a"}, echoing)
			for _, kind := range clientKinds {
				protocol, _, _ := strings.Cut(kind, "-")
				want := strings.Contains(c.serves, protocol)
				if !want && protocol == "grpc" {
					continue // the real client waits for its connection without end
				}
				_, err := r.dial(kind, "x:1")
				testutil.Equal(t, err == nil, want, "%s: it is served (%v)", kind, err)
			}
			if c.refuses == "" {
				return
			}
			testutil.Fails(t, testutil.Err(r.tryAgent(c.refuses, agentHello{id: "b"}, echoing)), "an agent by %s was taken", c.refuses)
		})
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for _, o := range []Options{
		{}, {ID: "x"}, {ID: "x", Clients: make([]Listener, 1)},
		{ID: "x", Clients: make([]Listener, 1), Agents: make([]Listener, 1)},
	} {
		testutil.Fails(t, testutil.Err(New(o)), "accepted: %+v", o)
	}
}

func TestAgentsThatAreRefused(t *testing.T) {
	claims := testutil.Must(auth.NewClaims("", logging.Silent()))(t)
	log, said := logtest.NewNullLogger()
	r := startServer(t, func(o *Options) { o.Claims, o.Log = claims, log })
	for _, kind := range agentKinds {
		for name, h := range map[string]agentHello{
			"no id":              {},
			"id of 10 kB":        {id: strings.Repeat("i", 10<<10)},
			"broken identifiers": {id: "a", identifiers: "ipv4=%zz"},
			"another's address":  {id: "a", identifiers: "ipv4=10.0.0.2"},
			"the default route":  {id: "a", identifiers: "default-route=true"},
		} {
			testutil.Fails(t, testutil.Err(r.tryAgent(kind, h, echoing)), "%s by %s was taken", name, kind)
		}
		// Its certificate's, and what upstream's server passes over.
		r.agent(kind, agentHello{id: "good-" + kind, identifiers: "ipv6=10.0.0.1&ipv4=$(HOST_IP)&cidr="}, echoing)
	}
	testutil.Equal(t, len(r.own.agents.Agents()), 2, "agents are known")
	r.hasMetrics(`agent_refusals_total{reason="denied"} 4`, `agent_refusals_total{reason="invalid"} 6`)
	messages := map[string]int{} // those of a flood are bounded by message
	for _, e := range said.AllEntries() {
		if e.Level == logrus.WarnLevel {
			messages[e.Message]++
			cause, has := e.Data["cause"]
			testutil.Holds(t, !has || cause != nil, "a cause that is none: %v", e.Data)
		}
	}
	testutil.Equal(t, fmt.Sprint(messages), "map[an agent was refused:10]", "warnings")
	// Without a certificate of our CA, not even the handshake works.
	c, err := tls.Dial("tcp", r.agentAt, &tls.Config{RootCAs: r.ca.Pool(), ServerName: "localhost", NextProtos: []string{link.ALPN}})
	if err == nil {
		_, err = link.Connect(t.Context(), c, link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "x"}})
	}
	testutil.Fails(t, err, "an agent without a certificate was taken")
	// Roles are kept apart.
	testutil.Fails(t, testutil.Err(r.linkAs(r.agentAt, link.RoleClient)), "a client on the agents' port")
	testutil.Fails(t, testutil.Err(r.linkAs(r.tcp, link.RoleAgent)), "an agent on the clients' port")
}

func (r *rig) linkAs(at string, role link.Role) (*link.Session, error) {
	return r.linked(at, r.tls(link.ALPN), link.Config{Hello: link.Hello{Role: role, ID: "x"}})
}

// reviews accepts the token "good" only, and is down when told.
type reviews struct{ down bool }

func (f *reviews) Create(_ context.Context, r kubeapi.TokenReviewSpec) (kubeapi.TokenReviewStatus, error) {
	if f.down {
		return kubeapi.TokenReviewStatus{}, errors.New("connection refused")
	}
	return kubeapi.TokenReviewStatus{Authenticated: r.Token == "good", Audiences: r.Audiences, User: kubeapi.UserInfo{Username: "system:serviceaccount:ns:agent"}}, nil
}

func TestTokens(t *testing.T) {
	api := &reviews{}
	r := startServer(t, func(o *Options) {
		o.Tokens = &auth.TokensConfig{Reviews: api, Accounts: []auth.Account{{Namespace: "ns", Name: "agent"}}, Audience: "aud", PerSecond: 1000, Burst: 100}
	})
	for _, kind := range agentKinds {
		r.agent(kind, agentHello{id: "good-" + kind, token: "good"}, echoing)
		for _, token := range []string{"", "bad"} {
			_, err := r.tryAgent(kind, agentHello{id: "x", token: token}, echoing)
			testutil.Holds(t, err != nil && !strings.Contains(err.Error(), "good"), "%s with token %q: %v", kind, token, err)
			testutil.Holds(t, kind != "grpc" || status.Code(err) == codes.Unauthenticated,
				"token %q: status %v", token, status.Code(err))
		}
	}
	// The API is down: those connected stay, new ones get a clear refusal.
	api.down = true
	for _, kind := range agentKinds {
		_, err := r.tryAgent(kind, agentHello{id: "new", token: "other"}, echoing)
		testutil.ErrorSays(t, err, "could not be reviewed", "%s", kind)
		testutil.Holds(t, kind != "grpc" || status.Code(err) == codes.Unavailable, "%v", err)
	}
	r.roundTrip(r.mustDial("connect-uds", "x:1"), 1000)
	r.hasMetrics(`agent_refusals_total{reason="unauthenticated"} 4`, `agent_refusals_total{reason="unavailable"} 2`, `token_review_duration_seconds_count{verdict="accepted"} 1`)
}

func TestListenerThatFailsEndsTheServer(t *testing.T) {
	l := testutil.Listen(t)
	r := startServer(t, func(o *Options) { o.Agents = append(o.Agents, Listener{Listener: l}) })
	r.agent("link", agentHello{id: "a"}, echoing)
	c := r.mustDial("connect-uds", "x:1")
	_ = l.Close()
	testutil.ErrorSays(t, r.wait(20*time.Second), "the listener for agents", "the server ends")
	testutil.Fails(t, testutil.Err(c.Read(make([]byte, 1))), "a connection outlived the server")
	<-r.result
	r.result <- nil // told
}

// An agent that is refused is counted so, and not as one that said nothing in time.
func TestARefusedAgentIsNoTimeout(t *testing.T) {
	for _, kind := range agentKinds {
		r := startServer(t)
		testutil.Fails(t, testutil.Err(r.tryAgent(kind, agentHello{id: "a", identifiers: "%zz"}, echoing)),
			"%s: it is admitted", kind)
		r.stopped() // which ends what gRPC still has open
		r.rejects(map[string]float64{"refused": 1})
	}
}

// An agent that is refused, and admitted by another stream of its connection, is not.
func TestAnAgentMayTryAgainOnItsConnection(t *testing.T) {
	r := startServer(t)
	conn := testutil.Opened(grpc.NewClient(r.agentAt, grpc.WithTransportCredentials(credentials.NewTLS(r.tls()))))(t)
	cfg := legacy.AgentConfig{ID: "a", Identifiers: "%zz", Forwarder: forwarder(echoing)}
	testutil.Fails(t, testutil.Err(legacy.ConnectAgent(testutil.Context(t), conn, cfg)), "it is admitted")
	cfg.Identifiers = ""
	ses := testutil.Must(legacy.ConnectAgent(testutil.Context(t), conn, cfg))(t)
	r.roundTrip(r.mustDial("connect-uds", "x:1"), 1000)
	_ = ses.Close()
	r.stopped()
	r.rejects(nil)
}

// An agent that leaves before it has said who it is was not too slow, nor is one that speaks
// something else.
func TestWhyALinkWasNotMade(t *testing.T) {
	r := startServer(t)
	for says, reason := range map[string]string{"": "closed", strings.Repeat("x", 100): "protocol"} {
		c := testutil.Must((&tls.Dialer{Config: r.tls(link.ALPN)}).DialContext(t.Context(), "tcp", r.agentAt))(t)
		_ = testutil.Must(c.Write([]byte(says)))(t)
		if says == "" {
			testutil.NoError(t, c.Close())
		}
		r.eventually("it is counted", func() bool {
			return r.metric(fmt.Sprintf(`rejected_connections_total{listener="agents",reason=%q} 1`, reason))
		})
		_ = c.Close()
	}
	r.stopped()
	r.rejects(map[string]float64{"closed": 1, "protocol": 1})
}

// rejects checks how many of the agents' connections the server has rejected, by reason.
func (r *rig) rejects(want map[string]float64) {
	r.t.Helper()
	for _, reason := range []string{"limit", "evicted", "proxy", "tls", "timeout", "protocol", "refused", "closed"} {
		got := promtest.ToFloat64(r.metrics.rejected.WithLabelValues("agents", reason))
		testutil.Equal(r.t, got, want[reason], "connections that are rejected as %s", reason)
	}
}
