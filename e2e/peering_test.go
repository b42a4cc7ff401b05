package e2e

import (
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// crew is three servers that forward to one another, with one agent each for an address
// of its own.
type crew struct {
	*suite.Suite
	servers []*suite.Server
	agents  []*suite.Agent
	flags   [][]string // of servers
	targets []string
}

func newCrew(t *testing.T) *crew {
	t.Helper()
	c := &crew{Suite: newSuite(t)}
	var ports []int
	var all []string
	for range 3 {
		port := testutil.Reserved(t)
		ports, all = append(ports, port), append(all, suite.Loopback(port))
	}
	echo := listenAll(t)
	for i, port := range ports {
		flags := []string{"--proxy-strategies=destHost", "--graceful-shutdown-timeout=1s", fmt.Sprint("--peer-port=", port), "--peer-bind-address=127.0.0.1", "--peer-servers=" + strings.Join(all, ",")}
		srv := must(c.StartServer(flags...))(t)
		address := fmt.Sprint("127.0.1.", i+1)
		agent := must(c.LaunchAgent(srv, "--agent-identifiers=ipv4="+address, "--sync-interval-cap=1s"))(t)
		c.servers, c.agents, c.flags = append(c.servers, srv), append(c.agents, agent), append(c.flags, flags)
		c.targets = append(c.targets, net.JoinHostPort(address, echo))
	}
	c.linked(t)
	return c
}

// linked waits until each server knows the agents of the others.
func (c *crew) linked(t *testing.T) {
	t.Helper()
	for _, srv := range c.servers {
		reaches(t, patience, srv.HealthURL("/metrics"), "server_peer_servers", 2)
		reaches(t, patience, srv.HealthURL("/metrics"), "server_peer_routes", 8) // route, address, any agent, any host; of two agents
	}
}

// listenAll echoes at every address of this machine, and returns the port.
func listenAll(t *testing.T) string {
	t.Helper()
	l := must(net.Listen("tcp", "0.0.0.0:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// Each agent is linked to one of three servers, and clients reach it through any of them.
// Servers are killed and replaced one after the other: no dial fails, and no connection of
// a sidecar is lost.
func TestAnyServerWillDo(t *testing.T) {
	t.Parallel()
	c := newCrew(t)
	clients := newBalancer(t, clientSide(c.servers...)...)
	sidecar := must(c.StartHTTPS(clients.front()))(t)
	ways := []tunnel.Dialer{viaConnect("tcp", sidecar.Address(), nil)}
	for _, srv := range c.servers {
		ways = append(ways, viaConnect("unix", srv.UDS, nil)) // a server of its own
	}
	began, dials := time.Now(), scaled(300, 10000)
	for i := range dials {
		if o := echoOnce(ways[i%len(ways)], c.targets[i/len(ways)%3]); o.err != nil {
			t.Fatal(o.err)
		}
	}
	t.Logf("%d dials in %v", dials, time.Since(began))

	var held []tunnel.Conn
	for _, target := range c.targets {
		conn := must(ways[0].Dial(t.Context(), tunnel.NewFlow("tcp", target)))(t)
		defer conn.Close()
		held = append(held, conn)
	}
	var stops []func() (int64, []error)
	for _, target := range c.targets {
		stops = append(stops, dialing(ways[:1], target, scaled(15, 167)))
	}
	replace := func(i int, how string) {
		t.Helper()
		if err := c.RunServer(c.servers[i], c.flags[i]...); err != nil {
			t.Fatal(err)
		}
		c.linked(t)
		for n, conn := range held {
			says(t, conn, fmt.Sprintf("server %d was %s, connection %d", i, how, n))
		}
	}
	for i, srv := range c.servers {
		time.Sleep(scaled(200*time.Millisecond, 2*time.Second))
		srv.Kill()
		replace(i, "killed")
	}
	for _, stop := range stops {
		made, errs := stop()
		t.Logf("%d dials beside it, %d failed", made, len(errs))
		for _, err := range errs[:min(len(errs), 3)] {
			t.Error(err)
		}
	}
	began = time.Now()
	stopInOrder(t, c.servers[0].Process)
	t.Logf("a server left in %v", time.Since(began))
	replace(0, "stopped")
	status, screen := operator(t, c.Suite, "status", suite.Loopback(c.servers[0].AdminPort))
	if !strings.Contains(screen, "2 servers") || !strings.Contains(screen, "server  ") {
		t.Errorf("konnectivity status shows no other servers (exit status %d):\n%s", status, screen)
	}
}

// says has an echoed message come back by a connection.
func says(t *testing.T, conn tunnel.Conn, message string) {
	t.Helper()
	_ = conn.SetDeadline(time.Now().Add(patience))
	if _, err := io.WriteString(conn, message); err != nil {
		t.Fatalf("%s: %v", message, err)
	}
	got := make([]byte, len(message))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != message {
		t.Fatalf("%s: %q came back, %v", message, got, err)
	}
}
