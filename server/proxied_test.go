package server

import (
	"io"
	"net"
	"sync"
	"testing"

	"konnectivity/internal/admin"
	"konnectivity/internal/admission"
	"konnectivity/internal/testutil"
)

// balanced puts a load balancer in front of a server's port for agents, which
// begins each connection with a header.
func (r *rig) balanced(header string) {
	l := listenTCP(r.t)
	var carried sync.WaitGroup
	server := r.agentAt
	carried.Go(func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", server)
			if err != nil {
				r.t.Error(err)
				near.Close()
				return
			}
			carried.Go(func() {
				defer far.Close()
				_, _ = io.WriteString(far, header)
				_, _ = io.Copy(far, near)
			})
			carried.Go(func() {
				defer near.Close()
				_, _ = io.Copy(near, far)
			})
		}
	})
	r.t.Cleanup(func() {
		l.Close()
		carried.Wait()
	})
	r.agentAt = l.Addr().String()
}

// Agents of both protocols are shown by the address that the load balancer
// names, and serve as ever.
func TestAgentsBehindABalancer(t *testing.T) {
	for _, kind := range agentKinds {
		t.Run(kind, func(t *testing.T) {
			r := startServer(t, func(o *Options) {
				networks := testutil.Must(admission.ParseNetworks([]string{"127.0.0.0/8", "::1"}))(t)
				o.Agents[0].Proxies = networks
			})
			const remote = "198.51.100.7:4711"
			r.balanced("PROXY TCP4 198.51.100.7 203.0.113.1 4711 8091\r\n")
			r.agent(kind, agentHello{id: "a"}, echoing)
			if peers := ask[admin.Page[admin.Peer]](r, "peers").Items; len(peers) != 1 || peers[0].Remote != remote {
				t.Errorf("the status page has %+v, want %s", peers, remote)
			}
			r.roundTrip(r.mustDial("connect-tls", "echo:1"), 100_000)
		})
	}
}
