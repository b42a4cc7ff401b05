package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// audited is a record of an audit log.
type audited struct {
	Audit                                int
	Event, Component, Name, ID           string
	Identity                             []string
	Front, Source, Destination, Resolved string
	NextRole, Next, Failure, Reason, End string
	Rule                                 string
	Resumed                              bool
	UpBytes, DownBytes, Resumes          int64
}

// records are those among the lines.
func records(t testing.TB, lines string) (all []audited) {
	t.Helper()
	for line := range strings.Lines(lines) {
		if !strings.HasPrefix(line, `{"audit":`) || !strings.HasSuffix(line, "\n") { // the rest of a line may be read later
			continue
		}
		var r audited
		err := json.Unmarshal([]byte(line), &r)
		testutil.Requires(t, err == nil, "%v: %s", err, line)
		all = append(all, r)
	}
	return all
}

// recordOf waits for the record of an event in a program's output.
func recordOf(t testing.TB, p *suite.Process, id, event string) (found audited) {
	t.Helper()
	eventually(t, patience, fmt.Sprintf("%s records %s of %s", p.Name, event, id), func() (bool, any) {
		all := slices.DeleteFunc(records(t, p.Output()), func(r audited) bool { return r.ID != id || r.Event != event })
		if len(all) == 1 {
			found = all[0]
		}
		return len(all) == 1, "\n" + p.Output()
	})
	return found
}

// A connection has one id at every program on its way, by links and by the old protocols:
// that of a traceparent, if there is one. Audit logs, logs, spans and status have it, with what
// each program knows of the connection.
func TestAuditFollowsAConnection(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"auto", "off"} {
		t.Run("link "+mode, func(t *testing.T) { newTraced(t, mode).follow(t) })
	}
}

func (w *traced) follow(t *testing.T) {
	way := []*suite.Process{w.https.Process, w.server.Process, w.agent.Process}
	target := testutil.Echo(t)
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	c := must(net.Dial("tcp", w.https.Address()))(t)
	defer c.Close()
	testutil.NoError(t, connect(c, target, traceparent(trace)))
	for _, p := range way {
		r := recordOf(t, p, trace, "opened")
		testutil.Holds(t, r.Audit == 1 && r.Destination == target && r.Source != "" && !r.Resumed, "%s: %+v", p.Name, r)
	}
	w.shown(t, trace, w.httpsAt, suite.Loopback(w.server.AdminPort), agentAt(w.agent))
	pingPong(t, c, "ping")
	c.Close()
	for _, p := range way {
		r := recordOf(t, p, trace, "closed")
		testutil.Holds(t, r.UpBytes == 4 && r.DownBytes == 4 && r.End != "", "%s: %+v", p.Name, r)
	}
	if r := recordOf(t, w.server.Process, trace, "closed"); r.Name != "server-1" || r.NextRole != "agent" || r.Next != "agent-1" || !slices.Contains(r.Identity, "cn:konnectivity-client") {
		t.Errorf("the server records %+v", r)
	}
	w.logs(t, trace, way...)
	w.spans(t, trace)
	const denied = "0af7651916cd43dd8448eb211c80319c"
	refused := must(net.Dial("tcp", w.https.Address()))(t)
	defer refused.Close()
	testutil.Fails(t, connect(refused, "denied.example:443", traceparent(denied)), "a destination that is denied")
	for _, p := range way[:2] {
		r := recordOf(t, p, denied, "refused")
		testutil.Holds(t, r.Failure == "denied" && r.Reason != "" && r.Destination == "denied.example:443", "%s: %+v", p.Name, r)
	}
	w.otherFronts(t, target, trace)
}

// While records cannot be written, konnectivity status says so of every program.
func TestAuditFaultIsShown(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	testutil.NoError(t, os.Mkdir(dir, 0o700))
	log := func(name string) string { return "--audit-log=" + filepath.Join(dir, name) }
	f := newFaulty(t, []string{log("server")}, []string{log("agent")})
	at := suite.Loopback(testutil.Reserved(t))
	https := must(f.StartHTTPS(f.server, log("https"), "--admin-address="+at))(t)
	testutil.NoError(t, os.RemoveAll(dir))
	c := must(net.Dial("tcp", https.Address()))(t)
	t.Cleanup(func() { _ = c.Close() })
	testutil.Must(fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", f.reachable))(t)
	for _, at := range []string{f.serverAt(), agentAt(f.agent), at} {
		f.statusTells(t, patience, at, "records of the audit log cannot be written", "no such file")
	}
}

// A plain HTTP request is a connection to the records of its sidecar.
func TestAuditOfPlainRequests(t *testing.T) {
	t.Parallel()
	w := &whole{Suite: newSuite(t)}
	w.server = must(w.StartServer())(t)
	w.agent = must(w.StartAgent(w.server))(t)
	w.https = must(w.StartHTTPS(w.server, "--audit-log=-"))(t)
	site := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	t.Cleanup(site.Close)
	for range 2 {
		res := must(clientBy("http://"+w.https.Address()).Post(site.URL+"/secret?token=secret", "text/plain", strings.NewReader("abc")))(t)
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
	var all []audited
	eventually(t, patience, "records of two requests", func() (bool, any) {
		all = records(t, w.https.Output())
		return len(all) == 4, w.https.Output()
	})
	for _, r := range all {
		if r.Destination != site.Listener.Addr().String() || r.Event == "closed" && (r.UpBytes != 3 || r.DownBytes != 5 || r.End != "complete") {
			t.Errorf("%+v", r)
		}
	}
	testutil.Holds(t, !strings.Contains(w.https.Output(), "secret"), "a record tells what was requested")
}

// While links are cut and connections resumed, each process writes one pair of records for
// a connection, and the bytes in the records of either end are those that were carried.
func TestAuditAddsUp(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	log := func(name string) string { return "--audit-log=" + filepath.Join(dir, name) }
	f := newFleet(t, 2, flags{server: []string{log("servers")}, agent: []string{log("agent")}, sidecars: []string{log("sidecars")}})
	target := testutil.Echo(t)
	var left, carried, failed atomic.Int64
	left.Store(scaled(int64(2000), 100_000))
	n := left.Load()
	var working sync.WaitGroup
	var done [16]atomic.Int64
	for i := range done {
		way := f.ways()[i%2]
		working.Go(func() {
			for left.Add(-1) >= 0 {
				if err := pings(t, way, target, &carried); err != nil {
					t.Log(err)
					failed.Add(1)
				}
				done[i].Add(1)
			}
		})
	}
	for left.Load() > 0 {
		for _, leg := range append([]*balancer{f.toClients}, f.toAgents...) {
			time.Sleep(rand.N(200 * time.Millisecond))
			leg.cut()
			// What was cut gets on before the next cut, however slow the machine.
			for i := range done {
				for was := done[i].Load(); done[i].Load() == was && left.Load() > 0; time.Sleep(time.Millisecond) {
				}
			}
		}
	}
	working.Wait()
	testutil.Equal(t, failed.Load(), 0, "connections that failed")
	for _, p := range []*suite.Process{f.socks.Process, f.https.Process, f.servers[0].Process, f.servers[1].Process, f.agent.Process} {
		stopInOrder(t, p)
	}
	for _, name := range []string{"sidecars", "agent", "servers"} {
		opened, closed, up, down, resumes := pairs(t, filepath.Join(dir, name))
		t.Logf("%s: %d opened, %d closed, %d up, %d down, %d resumes; %d connections carried %d", name, opened, closed, up, down, resumes, n, carried.Load())
		testutil.Holds(t, opened == closed && (name == "servers" || int64(opened) == n && up == carried.Load() && down == carried.Load()),
			"the records of %s do not add up", name)
		testutil.AtLeast(t, resumes, 1, "connections that %s have resumed", name)
	}
}

// pings sends some bytes, some times, and wants them back.
func pings(t *testing.T, way tunnel.Dialer, target string, carried *atomic.Int64) error {
	ctx := within(t, patience)
	c, err := way.Dial(ctx, tunnel.NewFlow("tcp", target))
	for ; err != nil; c, err = way.Dial(ctx, tunnel.NewFlow("tcp", target)) { // all links are cut
		if ctx.Err() != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(2 * patience))
	for range 1 + rand.N(4) {
		sent := make([]byte, 1+rand.N(4096))
		if _, err := c.Write(sent); err != nil {
			return err
		}
		if _, err := io.ReadFull(c, make([]byte, len(sent))); err != nil {
			return err
		}
		carried.Add(int64(len(sent)))
		time.Sleep(rand.N(20 * time.Millisecond))
	}
	if err := c.CloseWrite(); err != nil {
		return err
	}
	if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
		return fmt.Errorf("%d bytes too many, %v", len(rest), err)
	}
	return nil
}

// pairs reads a file of records. Each process must have one pair of them for an id, besides
// those of dials that were given up when the destination had answered already, and made
// again.
func pairs(t *testing.T, path string) (opened, closed int, up, down, resumes int64) {
	t.Helper()
	seen := map[[2]string]bool{}
	for _, r := range records(t, string(must(os.ReadFile(path))(t))) {
		key := [2]string{r.Name, r.ID}
		switch {
		case r.Event == "opened":
			opened++
		case r.Event == "closed" && r.UpBytes == 0: // each connection of the test carries some
			opened--
		case r.Event == "closed":
			closed++
			up, down, resumes = up+r.UpBytes, down+r.DownBytes, resumes+r.Resumes
			testutil.Holds(t, !seen[key], "two records of the end of %v", key)
			seen[key] = true
		case r.Event != "refused":
			t.Errorf("%+v", r)
		}
	}
	return opened, closed, up, down, resumes
}

// BenchmarkAuditLog compares connections a second with audit logs in sidecar, server and
// agent, and without, by 1,000 rules. Both are measured in turn in each round. It reports the
// medians of the rounds' ratios, of connections a second and of processor time for each.
func BenchmarkAuditLog(b *testing.B) {
	var rules strings.Builder
	for i := range 999 {
		fmt.Fprintf(&rules, "- {name: r%d, action: deny, who: ['*'], where: ['10.%d.%d.0/24', '*.n%d.example']}\n", i, i/250, i%250, i)
	}
	rules.WriteString("- {name: loopback, action: allow, who: ['*'], where: ['127.0.0.0/8']}\n")
	target := testutil.Echo(b)
	type world struct {
		procs []*suite.Process
		by    tunnel.Dialer
	}
	start := func(audited bool) world {
		s := suite.ForTest(b, binaries)
		policy := filepath.Join(s.Dir, "policy.yaml")
		writePolicy(b, policy, "rules:\n"+rules.String())
		var log []string
		if audited {
			log = []string{"--audit-log=" + filepath.Join(s.Dir, "audit.jsonl")}
		}
		srv := must(s.StartServer(append(log, "--policy-file="+policy)...))(b)
		agent := must(s.StartAgent(srv, append(log, "--policy-file="+policy)...))(b)
		socks := must(s.StartSOCKS5(srv, log...))(b)
		return world{[]*suite.Process{srv.Process, agent.Process, socks.Process}, viaSOCKS5(socks.Address())}
	}
	worlds := [2]world{start(false), start(true)}
	measure := func(w world, long time.Duration) (perSecond, cost float64) {
		spent := func() (sum time.Duration) {
			for _, p := range w.procs {
				ran, _, err := p.Processor()
				testutil.NoError(b, err)
				sum += ran
			}
			return sum
		}
		var done atomic.Int64
		var working sync.WaitGroup
		before, began := spent(), time.Now()
		for range 8 {
			working.Go(func() {
				for time.Since(began) < long {
					if got := echoOnce(w.by, target); got.err != nil {
						b.Error(got.err)
						return
					}
					done.Add(1)
				}
			})
		}
		working.Wait()
		n := float64(done.Load())
		return n / time.Since(began).Seconds(), (spent() - before).Seconds() / n
	}
	for _, w := range worlds {
		measure(w, 2*time.Second)
	}
	var rates, costs []float64
	for i := 0; b.Loop(); i++ {
		var rate, cost [2]float64
		for j := range worlds {
			k := (i + j) % 2
			rate[k], cost[k] = measure(worlds[k], 2*time.Second)
		}
		rates, costs = append(rates, rate[1]/rate[0]), append(costs, cost[1]/cost[0])
		b.Logf("%.0f and %.0f connections/s, %.1f and %.1f us of a core each", rate[0], rate[1], cost[0]*1e6, cost[1]*1e6)
	}
	for unit, ratios := range map[string][]float64{"rate-ratio": rates, "cpu-ratio": costs} {
		slices.Sort(ratios)
		b.ReportMetric(ratios[len(ratios)/2], unit)
	}
}
