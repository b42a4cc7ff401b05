package e2e

import (
	"context"
	"fmt"
	"net"
	"testing"
	"time"

	"konnectivity/e2e/suite"
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

// Nodes' way through an agent beside the API server is as fast as the other direction.
func TestNodesWayBesideIsAsFastAsTheOther(t *testing.T) {
	n := newNodeOf(t)
	n.startBeside(t, n.api.secure.Listener.Addr().String())
	socks := must(n.StartSOCKS5(n.servers[0]))(t)
	n.compare(t, socks)
}
