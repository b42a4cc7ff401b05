package server

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

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
