package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	logtest "github.com/sirupsen/logrus/hooks/test"
	"google.golang.org/grpc/credentials/insecure"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/internal/unixsocket"
	"konnectivity/server/frontend"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// placed has clusters listen for themselves, on loopback.
func placed(o *Options) {
	o.TenantListener = func(at tenant.Address) (l Listener, err error) {
		if at.Socket != "" {
			l.Listener, err = unixsocket.Listen(at.Socket, unixsocket.Options{Replace: true})
			return l, err
		}
		l = o.Clients[0]
		if at.Agents {
			l = o.Agents[0]
		}
		l.Listener, err = net.Listen("tcp", loopback(at.Port))
		return l, err
	}
}

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// ports are those of a cluster of its own.
type ports struct{ agents, clients int }

func newPorts(t *testing.T) ports {
	return ports{testutil.Reserved(t), testutil.Reserved(t)}
}

// listen are lines of tenant.yaml.
func (p ports) listen() string {
	return fmt.Sprintf("listen: {agentPort: %d, clientPort: %d}\n", p.agents, p.clients)
}

// listens waits until somebody does.
func (r *rig) listens(network, at string) {
	r.t.Helper()
	r.eventually("it listens on "+at, func() bool { return accepts(network, at) })
}

// silent waits until nobody does.
func (r *rig) silent(network, at string) {
	r.t.Helper()
	r.eventually("nobody listens on "+at, func() bool { return !accepts(network, at) })
}

func accepts(network, at string) bool {
	conn, err := net.Dial(network, at)
	if err == nil {
		conn.Close()
	}
	return err == nil
}

// addAt is add for a cluster that has ports, and waits for these.
func (s *sharers) addAt(p ports, name, more string) *sharer {
	s.t.Helper()
	c := s.add(name, p.listen()+more)
	s.listens("tcp", loopback(p.agents))
	s.listens("tcp", loopback(p.clients))
	return c
}

// joins makes the cluster's agent come by a port, asking for a name.
func (c *sharer) joins(port int, name, id string) (*link.Session, error) {
	return c.of.linked(loopback(port), secureFor(name, c.cert, link.ALPN), link.Config{
		Hello: link.Hello{Role: link.RoleAgent, ID: id, Identifiers: "ipv4=10.0.0.1"}, Handler: forwarder(c.network),
	})
}

// Whoever comes in by a cluster's port is that cluster's or nobody's, whatever it
// asks for; clusters have the same names, ids and addresses.
func TestAPortIsOneClustersAlone(t *testing.T) {
	s := startSharers(t, placed)
	at := map[string]ports{"red": newPorts(t), "blue": newPorts(t)}
	red, blue := s.addAt(at["red"], "red", byAddress), s.addAt(at["blue"], "blue", byAddress)
	for _, c := range []*sharer{red, blue} {
		for i, name := range append([]string{c.serverName()}, commonNames...) {
			_, err := c.joins(at[c.name].agents, name, fmt.Sprint("agent-", i))
			testutil.Requires(t, err == nil, "%s under %q: %v", c.name, name, err)
		}
		c.has(len(commonNames) + 1)
	}
	for _, c := range []*sharer{red, blue} {
		c.reachesItsOwn(loopback(at[c.name].clients), sharedClients...)
	}
	before := red.dialed.Load() + blue.dialed.Load()
	for c, other := range map[*sharer]*sharer{red: blue, blue: red} {
		for _, wrong := range []struct {
			to   ports
			name string
		}{{at[other.name], ""}, {at[other.name], other.serverName()}, {at[other.name], c.serverName()}, {at[c.name], other.serverName()}} {
			what := fmt.Sprintf("%s at %+v under %q", c.name, wrong.to, wrong.name)
			testutil.Fails(t, testutil.Err(c.joins(wrong.to.agents, wrong.name, "agent-0")), "%s: its agent is let in", what)
			for _, kind := range sharedClients {
				testutil.Fails(t, testutil.Err(c.dialAt(kind, loopback(wrong.to.clients), wrong.name, "10.0.0.1:443")), "%s: its client is let in by %s", what, kind)
			}
		}
		testutil.Fails(t, testutil.Err(c.joins(at[c.name].clients, "", "agent-0")), "an agent of %s is let in by the port for clients", c.name)
	}
	testutil.Equal(t, red.dialed.Load()+blue.dialed.Load()-before, 0, "dials for those who are nobody's")
	red.has(len(commonNames) + 1)
	blue.has(len(commonNames) + 1)
}

// Ports come, move to another cluster and go while the server runs, at once. Who came by one
// stays, as with a name.
func TestPortsFollowTheirClusters(t *testing.T) {
	log, said := logtest.NewNullLogger()
	s := startSharers(t, placed, func(o *Options) { o.Log = log })
	red, blue := s.add("red", ""), s.add("blue", "")
	p := newPorts(t)
	red.write(p.listen())
	s.listens("tcp", loopback(p.agents))
	first := testutil.Must(red.joins(p.agents, "", "one"))(t)
	red.has(1)

	red.write("")
	blue.write(p.listen())
	s.eventually("the port is blue's", func() bool {
		_, err := blue.joins(p.agents, "", "one")
		return err == nil
	})
	blue.has(1)
	testutil.Equal(t, testutil.Lines(said, "cannot listen"), 0, "times the port was not free yet")
	testutil.Fails(t, testutil.Err(red.joins(p.agents, "", "two")), "red's agent is let in by what is blue's")
	testutil.Holds(t, !tunnel.Closed(first.Done()), "red's agent was cut")
	for _, c := range []*sharer{red, blue} {
		got := s.tenants.now.Load().status(c.state())
		testutil.Equal(t, got.State, tenant.StateServing, "%s is (%s)", c.name, got.Error)
	}

	blue.remove()
	s.silent("tcp", loopback(p.agents))
	s.silent("tcp", loopback(p.clients))
	red.has(1)
}

// Two clusters may swap their ports, and until the second says so, both keep theirs.
func TestClustersSwapTheirPorts(t *testing.T) {
	s := startSharers(t, placed)
	one, two := newPorts(t), newPorts(t)
	red, blue := s.addAt(one, "red", ""), s.addAt(two, "blue", "")
	red.write(two.listen())
	testutil.Succeeds(t, testutil.Err(blue.joins(two.agents, "", "before")), "blue's port is red's before blue has given it up")
	blue.write(one.listen())
	for c, p := range map[*sharer]ports{red: two, blue: one} {
		s.eventually(c.name+" has the other's port", func() bool {
			_, err := c.joins(p.agents, "", "after")
			return err == nil
		})
		s.eventually(c.name+" is served as its files say", func() bool {
			return s.tenants.now.Load().status(c.state()).State == tenant.StateServing
		})
	}
}

// A cluster with ports for both sides needs no name.
func TestPortsDoWithoutNames(t *testing.T) {
	s := startSharers(t, placed)
	p := newPorts(t)
	red := s.add("red", "")
	testutil.NoError(t, os.WriteFile(filepath.Join(s.folder, "red", tenant.SettingsFile), []byte(p.listen()), 0o644))
	s.dir.Look()
	s.listens("tcp", loopback(p.agents))
	s.listens("tcp", loopback(p.clients))
	testutil.Must(red.joins(p.agents, "anything.example", "one"))(t)
	testutil.Must(red.joins(p.agents, red.serverName(), "two"))(t) // which it had, and its peers may still dial
	red.has(2)
	conn, err := red.dialAt("link", loopback(p.clients), "", "10.0.0.1:443")
	testutil.Holds(t, err == nil && red.greets(conn), "%v", err)

	blue := s.addServed("blue", "")
	blue.remove()
	testutil.Fails(t, testutil.Err(red.joins(p.agents, blue.serverName(), "three")), "who asks for what was another's is let in")
}

// listed is what the admin API has of the cluster.
func (c *sharer) listed() (found admin.Tenant) {
	for _, v := range c.of.tenants.list() {
		if v.Name == c.name {
			found = v
		}
	}
	return found
}

// What a cluster asks to listen on and cannot have harms that cluster alone, and is
// tried again; of two clusters, the first keeps a port.
func TestAPortThatCannotBeHad(t *testing.T) {
	t.Parallel() // it waits
	s := startSharers(t, placed)
	p := newPorts(t)
	red := s.addAt(p, "red", "")
	blue := s.add("blue", fmt.Sprintf("listen: {agentPort: %d}\n", p.clients))
	if got := blue.listed(); got.State != tenant.StateBroken || !strings.HasSuffix(got.Error, fmt.Sprintf("tenant.yaml: listen.agentPort: the port %d is that of the tenant \"red\" already", p.clients)) {
		t.Errorf("%+v", got)
	}

	other := testutil.Opened(net.Listen("tcp", loopback(testutil.Reserved(t))))(t)
	blue.write(fmt.Sprintf("listen: {agentPort: %d}\n", other.Addr().(*net.TCPAddr).Port))
	s.eventually("it is told", func() bool {
		got := blue.listed()
		return got.State == tenant.StateStale && strings.HasPrefix(got.Error, "tenant.yaml: listen.agentPort: ") && len(got.Listen) == 1
	})
	testutil.Equal(t, s.tenants.states()[tenant.StateStale], 1, "are counted as stale")
	testutil.Succeeds(t, testutil.Err(blue.unnamed(link.RoleAgent, "blue.example")), "by name it is not served either")
	got := red.listed()
	testutil.Equal(t, got.State, tenant.StateServing, "the first is (%s)", got.Error)
	testutil.Must(red.joins(p.agents, "", "one"))(t)
	other.Close()
	s.eventually("it is had at last", func() bool { return blue.listed().State == tenant.StateServing })
	testutil.Must(blue.joins(other.Addr().(*net.TCPAddr).Port, "", "two"))(t)
}

// A socket is one cluster's alone: nobody shows a certificate there. Who came by it is
// cut when it is taken away, and stays while the cluster's CAs change.
func TestASocketIsOneClustersAlone(t *testing.T) {
	s := startSharers(t, placed)
	folder := t.TempDir()
	path := func(name string) string { return filepath.Join(folder, name) }
	listen := func(name string) string { return "listen: {clientSocket: " + path(name) + "}\n" }
	red, blue := s.add("red", listen("red")), s.add("blue", listen("blue"))
	open := make(map[*sharer]net.Conn)
	for _, c := range []*sharer{red, blue} {
		s.listens("unix", path(c.name))
		c.hasAgent()
		conn, err := net.Dial("unix", path(c.name))
		testutil.NoError(t, err)
		open[c], err = s.connect(conn, "10.0.0.1:443")
		testutil.Requires(t, err == nil && c.greets(open[c]), "%s does not come to its own: %v", c.name, err)
		grpc, err := s.tunnel("10.0.0.1:443", "unix://"+path(c.name), insecure.NewCredentials())
		testutil.Holds(t, err == nil && c.greets(grpc), "%s by gRPC does not come to its own: %v", c.name, err)
	}
	red.write("")
	s.silent("unix", path("red"))
	s.isCut("who came by red's socket", open[red])
	testutil.NoError(t, os.WriteFile(filepath.Join(s.folder, "blue", tenant.ClientsCAFile), red.ca.CertPEM, 0o644))
	s.dir.Look()
	testutil.Must(open[blue].Write([]byte("?")))(t)
	_ = open[blue].SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	_, err := open[blue].Read(make([]byte, 1))
	testutil.Holds(t, os.IsTimeout(err), "who came by blue's socket was cut, by a CA: %v", err)
	blue.remove()
	s.silent("unix", path("blue"))
	s.isCut("who came by blue's socket", open[blue])
}

// A socket that takes its time, as one does whose folder somebody has locked, does not
// have the others wait for their turn.
func TestPlacesAreOpenedAtOnce(t *testing.T) {
	begun := make(chan struct{})
	s := startSharers(t, placed, func(o *Options) {
		listen := o.TenantListener
		o.TenantListener = func(at tenant.Address) (Listener, error) {
			select { // of two, each waits for the other
			case begun <- struct{}{}:
			case <-begun:
			case <-time.After(20 * time.Second):
				return Listener{}, errors.New("the other one has to wait for it")
			}
			return listen(at)
		}
	})
	folder := t.TempDir()
	var places []address
	for _, name := range []string{"red", "blue"} {
		places = append(places, address{name, tenant.Address{Socket: filepath.Join(folder, name)}})
	}
	life, end := context.WithCancel(t.Context())
	k := &listeners{tenants: s.tenants, side: clients, life: life, open: make(map[address]*door)}
	for i, err := range k.openAll(places) {
		testutil.Holds(t, err == nil && k.open[places[i]] != nil, "%s: %v", places[i].tenant, err)
	}
	end()
	k.running.Wait()
}

// What a listener of the flags has room for is for all ports of its side together.
func TestPortsShareRoom(t *testing.T) {
	s := startSharers(t, placed)
	for side, front := range map[side]interface{ Room() frontend.Room }{agents: s.fronts[agents][0], clients: s.fronts[clients][0]} {
		at := tenant.Address{Agents: side == agents, Port: testutil.Reserved(t)}
		l := testutil.Must(s.opts.TenantListener(at))(t)
		defer l.Close()
		k := &listeners{tenants: s.tenants, side: side}
		testutil.Equal(t, testutil.Must(k.front(address{"red", at}, l))(t).Room(), front.Room(),
			"%v have room of their own", side)
	}
}

// A listener that is told to serve nobody refuses, rather than serve its guests as the
// server's own cluster's.
func TestWhatATenantHasGivenUpIsRefused(t *testing.T) {
	s := startSharers(t, placed)
	red := s.add("red", "")
	if _, err := red.unnamed(link.RoleAgent, red.serverName()); err != nil { // once the server runs
		t.Fatal(err)
	}
	conn, far := net.Pipe()
	defer conn.Close()
	defer far.Close()
	for _, name := range []string{"red", "nobody"} { // of which one has no port any more
		g, err := s.tenants.chooserAt(clients, name)(&tls.ClientHelloInfo{ServerName: "localhost", Conn: conn})
		testutil.Holds(t, g == nil && err != nil, "%s: %v, %v", name, g, err)
	}
	who, err := s.tenants.named("nobody")
	testutil.Holds(t, who == nil && err != nil, "%v, %v", who, err)

	// A port that is still open: nobody is even shown a certificate.
	at := tenant.Address{Port: testutil.Reserved(t)}
	l, err := s.opts.TenantListener(at)
	testutil.NoError(t, err)
	front := testutil.Must((&listeners{tenants: s.tenants, side: clients}).front(address{"red", at}, l))(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := testutil.Later(func() error { return front.Serve(ctx, l) })
	_, err = tls.Dial("tcp", loopback(at.Port), secureFor("localhost", red.cert, "http/1.1"))
	testutil.Holds(t, tlsreload.NameUnknown(err), "whoever comes by it hears %v", err)
	cancel()
	testutil.NoError(t, <-served)
}
