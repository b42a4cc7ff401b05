package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// fleet is some servers and one agent, with both sidecars behind one balancer,
// and every leg by way of wires that can be cut.
type fleet struct {
	*suite.Suite
	t         *testing.T
	flags     flags
	servers   []*suite.Server
	toClients *balancer
	toAgents  []*balancer // one for each server
	agent     *suite.Agent
	socks     *suite.Sidecar
	https     *suite.Sidecar
	health    map[string]string // of sidecars
	admin     map[string]string // the same
	vault     *vault
}

// flags are added to those of the programs.
type flags struct {
	server, agent, sidecars []string
	each                    [][]string // of each server
	socks, https            []string   // of one sidecar
}

func newFleet(t *testing.T, servers int, more flags) *fleet {
	t.Helper()
	return newFleetOf(t, newSuite(t), servers, more)
}

func newFleetOf(t *testing.T, s *suite.Suite, servers int, more flags) *fleet {
	t.Helper()
	f := &fleet{Suite: s, t: t, flags: more, health: map[string]string{}, admin: map[string]string{}, vault: newVault(t)}
	f.flags.server = append(f.flags.server, fmt.Sprintf("--server-count=%d", servers), "--enable-profiling")
	var others []string
	for i := range servers {
		srv := must(f.StartServer(f.flags.of(i)...))(t)
		f.servers = append(f.servers, srv)
		f.toAgents = append(f.toAgents, newBalancer(t, agentSide(srv)...))
		if i > 0 {
			others = append(others, suite.Loopback(f.toAgents[i].port))
		}
	}
	f.toClients = newBalancer(t, clientSide(f.servers...)...)
	f.flags.agent = append(f.flags.agent, "--enable-profiling", "--sync-interval-cap=2s")
	if len(others) > 0 {
		f.flags.agent = append(f.flags.agent, "--proxy-server-host="+strings.Join(others, ","))
	}
	f.startAgent()
	t.Cleanup(f.explain)
	f.socks = must(f.StartSOCKS5(f.toClients.front(), append(f.sidecarFlags("socks5"), more.socks...)...))(t)
	f.https = must(f.StartHTTPS(f.toClients.front(), append(f.sidecarFlags("https"), more.https...)...))(t)
	return f
}

// of are those of one server.
func (f flags) of(server int) []string {
	if server < len(f.each) {
		return slices.Concat(f.server, f.each[server])
	}
	return f.server
}

func (f *fleet) startAgent() {
	f.t.Helper()
	f.agent = must(f.StartAgent(f.toAgents[0].front(), f.flags.agent...))(f.t)
	connected(f.t, f.agent, len(f.servers), patience)
}

func (f *fleet) sidecarFlags(name string) []string {
	f.health[name], f.admin[name] = suite.Loopback(testutil.Reserved(f.t)), suite.Loopback(testutil.Reserved(f.t))
	return append([]string{"--health-address=" + f.health[name], "--admin-address=" + f.admin[name]}, f.flags.sidecars...)
}

// explain tells of a test that failed what became of connections.
func (f *fleet) explain() {
	if !f.t.Failed() {
		return
	}
	urls := []string{f.agent.HealthURL("/metrics")}
	for _, at := range f.health {
		urls = append(urls, "http://"+at+"/metrics")
	}
	for _, url := range urls {
		body, _ := page(url)
		for line := range strings.Lines(body) {
			if !strings.HasPrefix(line, "#") && strings.Contains(line, "resum") || strings.Contains(line, "_degraded_connections_total ") {
				f.t.Log(strings.TrimSpace(line))
			}
		}
	}
}

// ways are the fronts of the sidecars.
func (f *fleet) ways() []tunnel.Dialer {
	return []tunnel.Dialer{viaSOCKS5(f.socks.Address()), viaConnect("tcp", f.https.Address(), nil)}
}

// whole is the fleet with its first server, for who goes by other routes, too.
func (f *fleet) whole() *whole {
	return &whole{Suite: f.Suite, server: f.servers[0], agent: f.agent, socks: f.socks, https: f.https}
}

// restart starts a server again that is gone.
func (f *fleet) restart(srv *suite.Server) {
	f.toClients.restarted(srv.ClientPort)
	testutil.Succeeds(f.t, f.RunServer(srv, f.flags.of(slices.Index(f.servers, srv))...), "restart")
}

// kill has a server die and start again.
func (f *fleet) kill(srv *suite.Server) {
	srv.Process.Kill()
	f.restart(srv)
}

// held is how many files and goroutines the agent, each sidecar, and the servers
// together have: links move between those. Where there is time, connections that
// outlive their links count, too: an end may wait a window for one that has gone,
// and holds neither.
func (f *fleet) held() (h holdings, err error) {
	type process struct{ name, url, prefix string }
	all := []process{{"agent", f.agent.HealthURL("/metrics"), "agent"}}
	for name, at := range f.health {
		all = append(all, process{name, "http://" + at + "/metrics", "konnectivity_sidecar"})
	}
	for _, srv := range f.servers {
		all = append(all, process{"servers", srv.HealthURL("/metrics"), "server"})
	}
	series := map[string]string{"goroutines": "go_goroutines", "files": "process_open_fds"}
	h = holdings{}
	for _, p := range all {
		if scaled(false, true) {
			series["connections"] = p.prefix + "_resumable_connections"
		}
		body, _ := page(p.url)
		for what, name := range series {
			n := value(body, name)
			if n < 0 {
				return nil, fmt.Errorf("%s does not tell its %s", p.name, what)
			}
			h[what+" of "+p.name] += int(n)
		}
	}
	return h, nil
}

// rests is what is held at rest, after one transfer by every way has made what is
// lazily made.
func (f *fleet) rests() holdings {
	f.t.Helper()
	for i, way := range f.ways() {
		c := dialed(f.t, way, f.vault.address)
		testutil.Succeeds(f.t, transfer(c, order{Kind: halves[i], Size: 1 << 20}, true), "a transfer at rest")
		_ = c.Close()
	}
	time.Sleep(time.Second)
	base := holdings{}
	for range 20 { // what comes and goes by itself is at rest, too
		h, _ := f.held()
		for what, n := range h {
			base[what] = max(base[what], n)
		}
		time.Sleep(50 * time.Millisecond)
	}
	return base
}

// settles waits until nothing is left of what was done since base was taken, and
// fails the test if a transfer has failed at the vault meanwhile, whose client may
// have had all of it. An end whose other end is gone without a word stays for the
// window of 30 s, and a lane that was added for 45 s. Where something is left, it logs what the
// servers' goroutines do.
func (f *fleet) settles(base holdings) {
	f.t.Helper()
	began, settled := time.Now(), false
	defer func() {
		for _, srv := range f.servers {
			if !settled {
				stacks, _ := page("http://" + suite.Loopback(srv.AdminPort) + "/debug/pprof/goroutine?debug=1")
				f.t.Logf("goroutines of the server %s:\n%s", srv.Name, stacks)
			}
		}
	}()
	eventually(f.t, 2*patience, fmt.Sprintf("want what was held before, %v", base), func() (bool, any) {
		h, err := f.held()
		return err == nil && h.within(base) && f.vault.open.Load() == 0, fmt.Sprint(h, err, " open at the vault: ", f.vault.open.Load())
	})
	settled = true
	f.t.Logf("nothing is left after %v", time.Since(began).Round(time.Millisecond))
	testutil.Equal(f.t, f.vault.failed.Load(), 0, "transfers that failed at the vault")
}
