package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// servedAlike is servers that forward to one another and serve the same tenants. The
// tenants' agents are links of this process.
type servedAlike struct {
	*suite.Suite
	servers []*suite.Server
	dir     string // of tenants, which all have
	tenants []*clusterOfMany
}

// serveAlike starts n servers with one folder of tenants.
func serveAlike(t *testing.T, n int) *servedAlike {
	t.Helper()
	a := &servedAlike{Suite: newSuite(t), dir: t.TempDir()}
	var ports, all []string
	for range n {
		port := testutil.Reserved(t)
		ports, all = append(ports, fmt.Sprint("--peer-port=", port)), append(all, suite.Loopback(port))
	}
	for _, port := range ports {
		srv := must(a.StartServer(port, "--peer-bind-address=127.0.0.1", "--peer-servers="+strings.Join(all, ","), "--tenants-dir="+a.dir, "--enable-profiling"))(t)
		a.servers = append(a.servers, srv)
	}
	for _, srv := range a.servers {
		reaches(t, patience, srv.HealthURL("/metrics"), "server_peer_servers", float64(n-1))
	}
	return a
}

// add adds a tenant to all servers.
func (a *servedAlike) add(t *testing.T, name string) {
	t.Helper()
	c := newTenant(t, name, "")
	c.putFolder(t, a.dir)
	a.tenants = append(a.tenants, c)
}

// served waits until each server serves so many tenants.
func (a *servedAlike) served(t *testing.T, n int) {
	t.Helper()
	for _, srv := range a.servers {
		reaches(t, time.Minute, srv.HealthURL("/metrics"), `server_tenants{state="serving"}`, float64(n))
	}
}

// agent links a tenant's agent to a server. It sends the tenant's name to each client,
// and then echoes.
func (a *servedAlike) agent(t *testing.T, c *clusterOfMany, srv *suite.Server) {
	t.Helper()
	pair := must(c.ca.Issue(pki.Leaf{CommonName: "agent", Client: true}))(t)
	config := &tls.Config{RootCAs: c.ca.Pool(), ServerName: c.serverName(), Certificates: []tls.Certificate{pair.TLS()}, NextProtos: []string{link.ALPN}}
	forwarder := &tunnel.Forwarder{Dialer: tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		near, far := net.Pipe()
		go func() {
			defer far.Close()
			if _, err := fmt.Fprintf(far, "%-8s", c.name); err == nil {
				_, _ = io.Copy(far, far)
			}
		}()
		return tunnel.Wrap(near), nil
	})}
	eventually(t, patience, "the agent is linked", func() (bool, any) { // a busy machine may take longer than the server waits
		conn, err := tls.Dial("tcp", suite.Loopback(srv.AgentPort), config)
		if err != nil {
			return false, err
		}
		ses, err := link.Connect(within(t, patience), conn, link.Config{Hello: link.Hello{Role: link.RoleAgent, ID: "one", Software: "test"}, Handler: forwarder})
		if err != nil {
			return false, err
		}
		t.Cleanup(func() { _ = ses.Close() })
		return true, nil
	})
}

// dial reaches a tenant's agent by a server.
func (a *servedAlike) dial(ctx context.Context, c *clusterOfMany, srv *suite.Server) (tunnel.Conn, error) {
	way := viaConnect("tcp", suite.Loopback(srv.ClientPort), &tls.Config{
		RootCAs: c.ca.Pool(), ServerName: c.serverName(), Certificates: []tls.Certificate{c.client}, NextProtos: []string{"http/1.1"}})
	conn, err := way.Dial(ctx, tunnel.NewFlow("tcp", "10.0.0.1:443"))
	if err != nil {
		return nil, err
	}
	_ = conn.SetDeadline(time.Now().Add(time.Minute))
	said := make([]byte, 8)
	if _, err := io.ReadFull(conn, said); err != nil || strings.TrimSpace(string(said)) != c.name {
		_ = conn.Close()
		return nil, fmt.Errorf("the client of %s was told %q: %v", c.name, said, err)
	}
	return conn, nil
}

// heap is what a server has allocated, garbage left out. The profile has the figure from right
// after a collection; a scrape of 1,000 tenants' metrics would count its own garbage. Pools are
// emptied by the second collection.
func heap(t *testing.T, srv *suite.Server) float64 {
	t.Helper()
	var profile string
	for range 2 {
		profile, _ = page("http://" + suite.Loopback(srv.AdminPort) + "/debug/pprof/heap?gc=1&debug=1")
	}
	_, figure, _ := strings.Cut(profile, "# HeapAlloc = ")
	figure, _, _ = strings.Cut(figure, "\n")
	return must(strconv.ParseFloat(figure, 64))(t)
}

// Each tenant's agent is linked to one of three servers, and its clients meet any of them:
// each comes to its own agent. What a server knows of an agent of another costs it 1 KB at
// most, and a forwarded round trip 1.6 times the time of a direct one.
func TestTenantsOverThreeServers(t *testing.T) {
	t.Parallel()
	a := serveAlike(t, 3)
	n, dials := scaled(60, 1000), scaled(600, 10000)
	for i := range n {
		a.add(t, fmt.Sprint("t", i))
	}
	a.served(t, n)
	before, far := heap(t, a.servers[2]), 0
	for i, c := range a.tenants {
		if i%3 != 2 {
			a.agent(t, c, a.servers[i%3])
			far++
		}
	}
	const keys = 2 // its route, and any agent
	reaches(t, time.Minute, a.servers[2].HealthURL("/metrics"), "server_peer_routes", float64(keys*far))
	each := (heap(t, a.servers[2]) - before) / float64(far)
	t.Logf("%.0f bytes for each of %d agents of other servers", each, far)
	testutil.Holds(t, !scaled(false, true) || each <= 1000, "an agent of another server costs %.0f bytes, want at most 1,000", each)
	for i, c := range a.tenants {
		if i%3 == 2 {
			a.agent(t, c, a.servers[2])
		}
	}
	for i, srv := range a.servers {
		reaches(t, time.Minute, srv.HealthURL("/metrics"), "server_peer_routes", float64(keys*(n-(n+2-i)/3)))
	}

	var failed atomic.Int64
	var work sync.WaitGroup
	began := time.Now()
	for w := range 8 {
		work.Go(func() {
			for i := w; i < dials; i += 8 {
				conn, err := a.dial(t.Context(), a.tenants[i%n], a.servers[rand.N(3)])
				if err != nil {
					failed.Add(1)
					t.Error(err)
					return
				}
				_ = conn.Close()
			}
		})
	}
	work.Wait()
	t.Logf("%d dials of %d tenants by any of three servers in %v, %d failed", dials, n, time.Since(began), failed.Load())
	direct, forwarded := a.roundTrips(t, scaled(200, 10000))
	t.Logf("round trips: %v direct, %v forwarded, %.2f times as long", direct, forwarded, float64(forwarded)/float64(direct))
	testutil.Holds(t, !scaled(false, true) || float64(forwarded) <= 1.6*float64(direct),
		"a forwarded round trip takes more than 1.6 times as long")
}

// roundTrips are the medians of n round trips with an agent of the server that is asked,
// and of another: one after the other, so that both meet the same load.
func (a *servedAlike) roundTrips(t *testing.T, n int) (direct, forwarded time.Duration) {
	t.Helper()
	var took [2][]time.Duration
	var conns [2]tunnel.Conn
	for i := range conns {
		conns[i] = must(a.dial(t.Context(), a.tenants[0], a.servers[i]))(t)
		defer conns[i].Close()
	}
	for i := range 2 * n {
		began := time.Now()
		pingPong(t, conns[i%2], "ping")
		took[i%2] = append(took[i%2], time.Since(began))
	}
	for i := range took {
		slices.Sort(took[i])
	}
	return took[0][n/2], took[1][n/2]
}
