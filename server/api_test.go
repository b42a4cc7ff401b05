package server

import (
	"io"
	"net"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
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
	if _, err := io.ReadFull(c, got); err != nil || string(got) != name {
		t.Errorf("%q, %v", got, err)
	}
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
	if !ses.API() {
		t.Fatal("the server does not take part")
	}
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
	if _, err := askAPI(t, ses); tunnel.FailureOf(err) != tunnel.FailDenied || ses.API() {
		t.Errorf("an agent that takes no part: %v", err)
	}
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
