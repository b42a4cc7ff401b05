package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// verdict is what a test's Recheck says; nil: all is well.
type verdict struct{ now atomic.Pointer[error] }

func (v *verdict) set(err error) { v.now.Store(&err) }

func (v *verdict) recheck([]*x509.Certificate) error {
	if err := v.now.Load(); err != nil {
		return *err
	}
	return nil
}

// far are the destination's sides of connections.
func far() (chan tunnel.Conn, network) {
	ends := make(chan tunnel.Conn, 64)
	return ends, func(context.Context, string) (tunnel.Conn, error) {
		near, f := tcpPair()
		ends <- f
		return near, nil
	}
}

// reset waits until an end reads a reset.
func (r *rig) reset(what string, c tunnel.Conn) {
	r.t.Helper()
	defer c.Close()
	_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
	testutil.Equal(r.t, tunnel.CodeOf(testutil.Err(c.Read(make([]byte, 1)))), tunnel.CodePeerReset,
		"%s reads, want a reset", what)
}

// What a client with a revoked certificate has open ends at the destination, however it
// came, and so does the connection that it came by. Unix sockets have none to revoke.
func TestRevokedClients(t *testing.T) {
	testutil.EachOf(t, agentKinds, func(t *testing.T, agent string) {
		var judge verdict
		r := startServer(t, func(o *Options) { o.Clients[0].Recheck, o.ResumeWindow = judge.recheck, time.Minute })
		ends, reach := far()
		r.agent(agent, agentHello{id: "a"}, reach)
		kept := r.mustDial("connect-uds", "x:1")
		atKept := <-ends
		defer atKept.Close()
		for _, kind := range []string{"connect-tls", "grpc-tls", "link"} {
			judge.set(nil)
			c := r.mustDial(kind, "x:1")
			end := <-ends
			r.TrustChanged() // and nothing is wrong with it
			testutil.Must(c.Write([]byte("x")))(t)
			testutil.Must(end.Read(make([]byte, 1)))(t)
			judge.set(tlsreload.ErrRevoked)
			r.TrustChanged()
			r.reset(kind, end)
			if _, err := c.Read(make([]byte, 1)); err == nil {
				t.Errorf("%s: the client's end is open", kind)
			} else if kind == "link" && tunnel.CodeOf(err) != tunnel.CodePolicy {
				t.Errorf("by link, a client is told %v", err)
			}
			if _, err := r.dial(kind, "x:1"); err == nil { // whose handshake this test's TLS lets pass
				t.Errorf("%s is served in the moments after", kind)
			}
		}
		r.eventually("the end is counted", func() bool { return r.metric(`connection_resets_total{cause="policy"} 3`) })
		r.eventually("who was refused is counted", func() bool { return r.metric(`rejected_connections_total{listener="clients",reason="refused"} 3`) })
		testutil.Must(kept.Write([]byte("x")))(t)
		testutil.Must(atKept.Read(make([]byte, 1)))(t)
	})
}

// An agent with a revoked certificate loses its connections at once. One whose CA is taken
// away loses its link alone: what outlives that waits for the agent to prove itself anew.
func TestRevokedAgents(t *testing.T) {
	var judge verdict
	r := startServer(t, func(o *Options) { o.Agents[0].Recheck = judge.recheck })
	for what, err := range map[string]error{"revoked": tlsreload.ErrRevoked, "no CA": errors.New("none")} {
		judge.set(nil)
		ends, reach := far()
		a := r.agent("link", agentHello{id: "a"}, reach)
		c := r.mustDial("link", "x:1")
		end := <-ends
		judge.set(err)
		r.TrustChanged()
		r.ends(what+": the agent's link", a.Done())
		_, err := c.Read(make([]byte, 1))
		testutil.Equal(t, tunnel.CodeOf(err) == tunnel.CodePolicy, what == "revoked", "%s: a client reads %v", what, err)
		end.Close()
		r.eventually("the agent is gone", func() bool { return r.own.agents.Counts().Agents == 0 })
	}
}

// One whose certificate is revoked before it has said who it is has not left by itself, and was
// not slow.
func TestAgentRevokedDuringItsHandshake(t *testing.T) {
	for _, proto := range []string{link.ALPN, "h2"} {
		var judge verdict
		r := startServer(t, func(o *Options) { o.Agents[0].Recheck = judge.recheck })
		c := testutil.Must((&tls.Dialer{Config: r.tls(proto)}).DialContext(t.Context(), "tcp", r.agentAt))(t)
		defer c.Close()
		r.eventually("its handshake begins", func() bool {
			r.own.mu.Lock()
			defer r.own.mu.Unlock()
			for range r.own.conns.All() {
				return true
			}
			return false
		})
		judge.set(tlsreload.ErrRevoked)
		r.TrustChanged()
		_, _ = io.Copy(io.Discard, c) // until it is cut
		r.stopped()
		r.rejects(map[string]float64{"refused": 1})
	}
}

// Links to a revoked server end, also those that it has dialed.
func TestRevokedServers(t *testing.T) {
	c := startCrew(t, 2)
	links := func() (all []*link.Session) {
		for _, l := range c.servers[0].peering.Links() {
			all = append(all, l.Session)
		}
		return all
	}
	before := links()
	c.servers[0].TrustChanged()
	c.judge.set(tlsreload.ErrRevoked)
	c.servers[0].TrustChanged()
	for _, ses := range before {
		c.servers[0].ends("a link to a server", ses.Done())
	}
}

// A server that is revoked while it is being linked is not linked: its certificate was
// verified by the lists of before.
func TestAServerThatIsRevokedMeanwhile(t *testing.T) {
	c := newCrew(t, 2)
	r := startServer(t, c.join(0))
	c.judge.set(tlsreload.ErrRevoked)
	r.TrustChanged()
	startServer(t, c.join(1)) // which answers the first one's handshake by now
	r.eventually("it is not linked", func() bool { return r.peering.Failing()[netip.MustParseAddrPort(c.at[1])] != nil })
}

// New rules end what they deny, also where the address decides that a name has led to: as the
// agent tells it, or else the connection ends.
func TestNewRulesReachOpenConnections(t *testing.T) {
	const before = "version: 1\nmode: enforce\nrules:\n- {name: none, action: deny, who: ['*'], where: ['192.0.2.1']}\n"
	set, follow := withPolicy(t, before)
	r := startServer(t, set)
	hello := link.Hello{Role: link.RoleAgent, ID: "a", Features: []string{link.FeatureIdentity, link.FeatureRules}}
	resolved := map[string]string{"near.example:1": "10.9.0.1:1", "far.example:1": "10.1.0.1:1", "proxied.example:1": "10.1.0.1:3128", "unknown.example:1": ""}
	reach := tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		c, err := echoing(ctx, f.Address)
		if at, named := resolved[f.Address]; named && err == nil {
			c = tunnel.With(c, tunnel.Parts{Local: c.LocalAddr(), Remote: tunnel.Addr{Net: "tcp", Text: at}})
		}
		return c, err
	})
	testutil.Must(r.linked(r.agentAt, r.tls(link.ALPN), link.Config{Hello: hello, Clients: new(link.Clients), Handler: &tunnel.Forwarder{Dialer: reach}}))(t)
	r.eventually("the agent is known", func() bool { return r.own.agents.Counts().Agents == 1 })
	ses := testutil.Must(r.clientLink())(t)
	open := map[string]tunnel.Conn{}
	for _, at := range []string{"near.example:1", "far.example:1", "proxied.example:1", "unknown.example:1", "10.9.0.2:1", "10.1.0.2:1", "denied.example:1"} {
		open[at] = testutil.Must(ses.Dial(testutil.Context(t), tunnel.NewFlow("tcp", at)))(t)
	}
	follow(strings.Replace(before, "'192.0.2.1'", "'10.9.0.0/16', 'denied.example'", 1))
	for at, c := range open {
		if at == "far.example:1" || at == "10.1.0.2:1" {
			continue
		}
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		testutil.Equal(t, tunnel.CodeOf(testutil.Err(c.Read(make([]byte, 1)))), tunnel.CodePolicy, "%s: it ends by", at)
	}
	for _, at := range []string{"far.example:1", "10.1.0.2:1"} {
		r.roundTrip(open[at], 100)
	}
	follow("version: 1\nmode: report\nrules:\n- {name: all, action: deny, who: ['*'], where: ['*']}\n")
	r.roundTrip(open["10.1.0.2:1"], 100) // which a report leaves alone
}

// A tenant's new rules hold for its open connections, and for no other tenant's.
func TestATenantsNewRulesReachOpenConnections(t *testing.T) {
	s := startSharers(t)
	type opened struct {
		net.Conn
		of     *sharer
		denied bool
	}
	var all []opened
	for _, name := range []string{"red", "blue"} {
		of := s.addServed(name, "")
		of.hasAgent()
		for _, kind := range sharedClients {
			for _, at := range []string{"10.0.0.1:443", "10.9.0.1:443"} {
				all = append(all, opened{testutil.Must(of.dial(kind, at))(t), of, name == "red" && at == "10.9.0.1:443"})
			}
		}
	}
	all[0].of.write("policy: {deny: [10.9.0.0/16]}\n")
	for _, c := range all {
		if !c.denied {
			testutil.Holds(t, c.of.greets(c), "a connection of %s has ended", c.of.name)
			continue
		}
		s.isCut("what is denied", c)
	}
	s.eventually("the end is counted", func() bool { return s.metric(`connection_resets_total{cause="policy"} 3`) })
}

// A tenant's own policy file is one more condition for its clients, also for connections that
// are open. Without its file, and with one that it may not have, the tenant stays as it was.
func TestATenantsOwnPolicyFile(t *testing.T) {
	set, _ := withPolicy(t, "version: 1\nmode: enforce\nrules:\n- {name: flags, action: deny, who: ['*'], where: ['10.8.0.0/16']}\n")
	s := startSharers(t, set)
	red := s.addServed("red", "")
	red.hasAgent()
	open := testutil.Must(red.dial("connect", "10.9.0.1:443"))(t)
	const named = "policy: {file: policy.yaml}\n"
	const rules = "version: 1\nmode: enforce\nrules:\n- {name: own, action: allow, who: ['cn:peer'], where: ['10.1.0.0/16', '10.8.0.0/16']}\n"
	red.write(named, [2]string{"policy.yaml", rules})
	s.isCut("what the file denies", open)
	judges := func(when string) {
		t.Helper()
		for at, want := range map[string]bool{"10.1.0.1:443": true, "10.8.0.1:443": false, "10.9.0.1:443": false} {
			for _, kind := range sharedClients {
				c, err := red.dial(kind, at)
				testutil.Equal(t, err == nil, want, "%s, %s to %s: %v", when, kind, at, err)
				if err == nil {
					c.Close()
				}
			}
		}
	}
	judges("with its file")
	for when, text := range map[string]string{
		"with a file for others": strings.Replace(rules, "who:", "tenants: [blue], who:", 1),
		"with one that reports":  strings.Replace(rules, "enforce", "report", 1),
		"with one that is none":  "rules: []",
	} {
		red.write(named, [2]string{"policy.yaml", text})
		judges(when)
	}
	testutil.NoError(t, os.Remove(filepath.Join(s.folder, "red", "policy.yaml")))
	s.dir.Look()
	judges("without its file")
}

// revoke gives the cluster a list of these certificates, good until then.
func (c *sharer) revoke(more string, until time.Time, certs ...*x509.Certificate) {
	c.of.t.Helper()
	list := testutil.Must(c.ca.Revoke(until, certs...))(c.of.t)
	c.write(more, [2]string{tenant.ListsFile, string(list)})
}

// Whom a tenant's list names is cut and refused, by name and by certificate, and sees nothing
// by the admin port, over a connection that is open either. The neighbour's certificate has
// the same issuer by name. When its list is to be replaced is shown of each tenant that has
// one, and to the tenant's own reader.
func TestATenantsListCutsItsPeers(t *testing.T) {
	operators, setting := adminCA(t, false)
	s := startSharers(t, setting)
	until := time.Now().Add(time.Hour)
	red, blue := s.add("red", told), s.add("blue", told)
	red.revoke(told, until)
	leaf := testutil.Must(x509.ParseCertificate(red.cert.Certificate[0]))(t)
	sees := s.holder(operators, red.cert)
	code, body := sees.get("/api/v1/status", "")
	testutil.Requires(t, code == 200, "%d %s", code, body)
	want := fmt.Sprintf("tenant_revocations_expiry_timestamp_seconds{tenant=\"red\"} %v", float64(until.Unix()))
	_, body = sees.get("/metrics", "")
	testutil.Holds(t, strings.Contains(body, want) && !strings.Contains(body, "blue"), "want %s: %s", want, body)
	links := map[string]*link.Session{
		"by name":        testutil.Must(red.agentLink(link.Hello{Role: link.RoleAgent, ID: "by-name"}))(t),
		"by certificate": testutil.Must(red.unnamed(link.RoleAgent, ""))(t),
	}
	neighbour := testutil.Must(blue.unnamed(link.RoleAgent, ""))(t)
	red.has(2)
	blue.has(1)
	open := red.reaches("connect", "a:1")
	red.revoke(told, until, leaf)
	for what, l := range links {
		s.ends("the end of the agent that came "+what, l.Done())
	}
	red.has(0)
	s.isCut("what a client has open", open)
	testutil.Fails(t, testutil.Err(red.dial("connect", "a:1")), "a revoked client is served")
	testutil.Fails(t, testutil.Err(red.unnamed(link.RoleAgent, "")), "a revoked agent is let in by certificate")
	testutil.Fails(t, testutil.Err(red.agentLink(link.Hello{Role: link.RoleAgent, ID: "again"})), "a revoked agent is let in by name")
	code, body = sees.get("/api/v1/status", "")
	testutil.Holds(t, code == 401, "a revoked reader over an open connection: %d %s", code, body)
	code, body = s.holder(operators, red.cert).get("/api/v1/status", "")
	testutil.Holds(t, code == 0, "a revoked reader: %d %s", code, body)
	select {
	case <-neighbour.Done():
		t.Error("the neighbour was cut")
	default:
		blue.has(1)
	}
}
