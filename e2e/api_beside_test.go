package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"hash"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// startBeside starts servers with --api-server=agent, the node's agent, and one beside the
// API server at that address.
func (n *node) startBeside(t *testing.T, api string, more ...string) {
	t.Helper()
	n.start(t, "agent")
	n.beside = n.agentBeside(t, api, more...)
}

func (n *node) agentBeside(t *testing.T, api string, more ...string) *suite.Agent {
	t.Helper()
	first, second := n.servers[0].ClientPort, n.servers[1].ClientPort
	a := must(n.StartAgent(n.servers[0], append(more, fmt.Sprintf("--proxy-server-port=%d", first), "--proxy-server-host="+suite.Loopback(second), "--api-server="+api,
		"--agent-cert="+n.PKI("client.crt"), "--agent-key="+n.PKI("client.key"))...))(t)
	connected(t, a, 2, patience)
	return a
}

// watchServer answers each connection over TLS with what it gets, as a watch's server with
// much to tell, and counts them.
func watchServer(t *testing.T, ca *pki.CA) (address string, conns *atomic.Int64) {
	t.Helper()
	pair := must(ca.Issue(pki.Leaf{CommonName: "api", DNS: []string{"localhost"}, Server: true}))(t)
	config := &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}
	conns = new(atomic.Int64)
	return testutil.Serve(t, func(c *net.TCPConn) {
		conns.Add(1)
		s := tls.Server(c, config)
		_, _ = io.Copy(s, s)
		_ = s.CloseWrite()
	}), conns
}

// watch is one connection of a node's program for as long as the test likes.
type watch struct {
	conn       *tls.Conn
	stop       chan struct{}
	both       sync.WaitGroup
	sent, got  hash.Hash
	nSent      int64
	nGot       atomic.Int64
	wErr, rErr error
}

// watches begins some, by TLS to the API server at the node's port.
func (n *node) watches(t *testing.T, count int) []*watch {
	t.Helper()
	var all []*watch
	for i := range count {
		conn := must(tls.Dial("tcp", suite.Loopback(n.port), &tls.Config{RootCAs: n.api.ca.Pool(), ServerName: "localhost"}))(t)
		_ = conn.SetDeadline(time.Now().Add(scaled(3*time.Minute, 30*time.Minute))) // rather than for ever
		w := &watch{conn: conn, stop: make(chan struct{}), sent: sha256.New(), got: sha256.New()}
		w.both.Go(func() { w.write(newPayload(int64(i), 1<<40)) })
		w.both.Go(func() {
			_, w.rErr = io.Copy(io.MultiWriter(w.got, counting{&w.nGot}), conn)
		})
		all = append(all, w)
	}
	return all
}

// write sends some 400 KB a second.
func (w *watch) write(from io.Reader) {
	for tick := time.NewTicker(10 * time.Millisecond); ; <-tick.C {
		select {
		case <-w.stop:
			w.wErr = w.conn.CloseWrite()
			return
		default:
		}
		n, err := io.CopyN(io.MultiWriter(w.conn, w.sent), from, 4000)
		if w.nSent += n; err != nil {
			w.wErr = err
			return
		}
	}
}

// end ends a watch, and fails unless all bytes have come back.
func (w *watch) end(t *testing.T) {
	t.Helper()
	close(w.stop)
	w.both.Wait()
	_ = w.conn.Close()
	if w.wErr != nil || w.rErr != nil || w.nSent != w.nGot.Load() || !bytes.Equal(w.sent.Sum(nil), w.got.Sum(nil)) {
		t.Errorf("a watch lost something: %d bytes sent (%v), %d received (%v)", w.nSent, w.wErr, w.nGot.Load(), w.rErr)
	}
}

// counting is a Writer that counts.
type counting struct{ n *atomic.Int64 }

func (c counting) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}

// With an agent beside the API server, watches of a node's programs outlive every server:
// those are killed and replaced in turn, and then told to stop.
func TestWatchesOutliveServers(t *testing.T) {
	t.Parallel() // it waits
	n := newNodeOf(t)
	api, conns := watchServer(t, n.api.ca)
	n.startBeside(t, api)
	const count = 8
	watches := n.watches(t, count)
	n.replaceServers(t, scaled(4, 20), func() {}, func() { goOn(t, watches) })
	var sum int64
	for _, w := range watches {
		w.end(t)
		sum += w.nSent
	}
	pauses, all := n.agent.HealthURL("/metrics"), `agent_resume_pause_seconds_`
	t.Logf("%d watches carried %d bytes each way, and were resumed %v times, after %.3f s in the mean", count, sum,
		metric(pauses, all+"count"), metric(pauses, all+"sum")/metric(pauses, all+"count"))
	testutil.Equal(t, conns.Load(), count, "connections for as many watches")
}

// replaceServers replaces one server after the other so many times: two are killed, and then
// two are told to stop. It calls harm before, and gone once the server is.
func (n *node) replaceServers(t *testing.T, times int, harm, gone func()) {
	t.Helper()
	for i := range times {
		srv := n.servers[i%2]
		harm()
		if i/2%2 == 0 {
			srv.Process.Kill()
		} else {
			stopInOrder(t, srv.Process)
		}
		gone()
		testutil.NoError(t, n.RunServer(srv, n.flags...))
		connected(t, n.agent, 2, patience)
		connected(t, n.beside, 2, patience)
	}
}

// Transfers of all kinds between a node and its API server, and connections that are made
// meanwhile, outlive servers: none of them fails.
func TestTransfersOfNodesOutliveServers(t *testing.T) {
	t.Parallel() // it waits
	n, v := newNodeOf(t), newVault(t)
	n.startBeside(t, v.address)
	s := startStorm(t, v, scaled(6*time.Second, 30*time.Second), halves, viaNode(n.port))
	n.replaceServers(t, scaled(4, 20), s.harm, func() { time.Sleep(scaled(500*time.Millisecond, time.Second)) })
	s.end()
}

// viaNode is how a node's programs reach their API server.
func viaNode(port int) tunnel.Dialer {
	return tunnel.DialerFunc(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
		var d net.Dialer
		c, err := d.DialContext(ctx, "tcp", suite.Loopback(port))
		if err != nil {
			return nil, err
		}
		return tunnel.Wrap(c), nil
	})
}

// goOn waits until each watch has received something more.
func goOn(t *testing.T, watches []*watch) {
	t.Helper()
	for i, w := range watches {
		before := w.nGot.Load()
		eventually(t, patience, fmt.Sprintf("watch %d goes on", i), func() (bool, any) { n := w.nGot.Load(); return n > before+40<<10, n })
	}
}

// Nodes' way through an agent beside the API server is as fast as the other direction.
func TestNodesWayBesideIsAsFastAsTheOther(t *testing.T) {
	n := newNodeOf(t)
	n.startBeside(t, n.api.secure.Listener.Addr().String())
	socks := must(n.StartSOCKS5(n.servers[0]))(t)
	n.compare(t, socks)
}

// Without an agent beside the API server, programs are told at once that there is none,
// the server's log once; and they reach it as soon as there is one.
func TestNodesWithoutAnAgentBesideTheAPIServer(t *testing.T) {
	t.Parallel() // it waits
	n := newNodeOf(t)
	n.start(t, "agent")
	for range 3 {
		if got, err := curl(t, "--cacert", n.ca, fmt.Sprintf("https://localhost:%d/3/1", n.port)); err == nil {
			t.Fatalf("%q came from nowhere", got)
		}
	}
	for _, srv := range n.servers {
		testutil.AtLeast(t, metric(srv.HealthURL("/metrics"), `server_api_refusals_total{reason="alone"}`), 1, "refusals")
		const line = "nodes do not reach their API server"
		logged(t, srv.Process, patience, line)
		testutil.Equal(t, strings.Count(srv.Process.Output(), line), 1, "times that the log says so")
	}
	n.agentBeside(t, n.api.secure.Listener.Addr().String())
	n.asks(t, 5<<20+3)
}

// The nodes of a tenant reach its own API server by the agent beside that, and no other's
// where its own has none.
func TestNodesOfTenantsReachTheirOwnAPIServer(t *testing.T) {
	t.Parallel() // it waits
	h := &hosting{Suite: newSuite(t), dir: t.TempDir()}
	names := []string{"a", "b"}
	var tenants []*clusterOfMany
	for _, name := range names {
		c := h.tenant(t, name)
		tenants = append(tenants, c)
		replace(t, filepath.Join(h.dir, name, "tenant.yaml"), []byte("serverNames: ["+c.serverName()+"]\napiServers: [agent]\n"))
	}
	h.server = must(h.StartServer("--tenants-dir=" + h.dir))(t)
	nodes, beside := map[string]string{}, map[string]*suite.Agent{}
	for i, c := range tenants {
		api := testutil.Serve(t, func(conn *net.TCPConn) { _, _ = io.WriteString(conn, names[i]) })
		nodes[c.name] = suite.Loopback(testutil.Reserved(t))
		h.agentFor(t, c, "--api-bind="+nodes[c.name])
		beside[c.name] = h.agentFor(t, c, "--api-server="+api, fmt.Sprintf("--proxy-server-port=%d", h.server.ClientPort))
	}
	says := func(name string) string {
		c, err := net.Dial("tcp", nodes[name])
		if err != nil {
			return "" // the reset may come this early
		}
		defer c.Close()
		got, _ := io.ReadAll(c)
		return string(got)
	}
	for range 10 {
		for _, name := range names {
			testutil.Equal(t, says(name), name, "a node of %s reaches", name)
		}
	}
	stopInOrder(t, beside["a"].Process)
	testutil.Equal(t, says("a"), "", "though its own API server has no agent, a node of a reaches")
	testutil.Equal(t, says("b"), "b", "a node of b reaches")
}
