package main

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
	"konnectivity/internal/pki"
	"konnectivity/internal/wait"
	"konnectivity/tunnel/link"
)

const (
	// restTime is how long the server rests before its memory is read: it returns
	// memory that it does not use after 15 s.
	restTime = 20 * time.Second

	// steps is in how many equal steps each count is reached: where a cost bends shows.
	steps = 4

	// budgetMiB is the largest default of the server's memory budget.
	budgetMiB = 256
)

// scale measures what each of many costs a server, and writes a table of each kind.
// Agents and sidecars are links that this process holds.
type scale struct {
	tenants, agents, connections, links int // of each kind; 0: not measured
	servers                             int // that the tenants share, and the sidecars
	rate                                int // new connections a second beside those that are held
	rest                                time.Duration
	profiles                            string // folder for heap, goroutine and CPU profiles; "": none

	suite *suite.Suite
	out   strings.Builder
	back  *table // of the links that come back after their server was killed

	failed int // dials

	reviews atomic.Int64 // of tokens, so far
}

// benchScale is `bench scale`.
func benchScale(ctx context.Context, args []string) error {
	s := &scale{}
	set := flag.NewFlagSet("bench scale", flag.ExitOnError)
	set.IntVar(&s.tenants, "tenants", 4000, "tenants, each with an agent and a sidecar on every server; 0: none")
	set.IntVar(&s.servers, "servers", 2, "servers that forward to one another, for tenants and sidecars")
	set.IntVar(&s.agents, "agents", 5000, "agents of one tenant; 0: none")
	set.IntVar(&s.connections, "connections", 50000, "connections that are held, over 500 tenants; 0: none")
	set.IntVar(&s.rate, "rate", 500, "new connections a second beside them")
	set.IntVar(&s.links, "links", 10000, "sidecars' links of one tenant; 0: none")
	set.DurationVar(&s.rest, "rest", restTime, "how long servers rest before they are looked at, and for which connections are made")
	set.StringVar(&s.profiles, "profiles", "", "folder for the servers' heap, goroutine and CPU profiles at the end of each; empty: none")
	write := set.String("write", "", "Markdown file whose tables between the marks are replaced")
	_ = set.Parse(args) // which ends the process itself
	if s.servers < 1 {
		return fmt.Errorf("-servers=%d: want 1 at least", s.servers)
	}
	for _, n := range []*int{&s.tenants, &s.agents, &s.connections, &s.links} {
		*n = max(*n, 0) / steps * steps // as many are added in each step
	}
	need := max(2*s.servers*s.tenants, s.agents, s.links, s.links/s.servers*9/2) + 4096 // a server has two ninths for clients
	if err := allowFiles(uint64(need)); err != nil {
		return fmt.Errorf("have %d files open at once: %w; run it as root, or with smaller counts", need, err)
	}
	err := withSuite(func(with *suite.Suite) error {
		s.suite, with.Descriptors = with, need
		return s.measure(ctx)
	})
	fmt.Print(s.out.String())
	if err != nil || *write == "" {
		return err
	}
	return replaceTable(*write, "bench-scale", s.out.String())
}

// allowFiles lets this process have so many files open.
func allowFiles(need uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return err
	}
	limit.Cur, limit.Max = max(limit.Cur, need), max(limit.Max, need)
	return syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit)
}

// measure takes one kind after the other, each on servers of its own.
func (s *scale) measure(ctx context.Context) error {
	s.back = newTable("All come back at once after a SIGKILL of their server",
		"links", "of", "the last after, s", "processor time by then, s", "resident at most, MB", "attempts that failed", "token reviews")
	for _, kind := range []struct {
		name    string
		count   int
		measure func(ctx context.Context, name string, count int) error
	}{
		{"tenants", s.tenants, s.measureTenants},
		{"agents", s.agents, s.measureLinks},
		{withTokens, s.agents, s.measureLinks},
		{sidecars, s.links, s.measureLinks},
		{"connections", s.connections, s.measureConnections},
	} {
		if kind.count == 0 {
			continue
		}
		if err := kind.measure(ctx, kind.name, kind.count); err != nil {
			return fmt.Errorf("%s: %w", kind.name, err)
		}
	}
	if len(s.back.lines) > 1 {
		s.write(s.back)
	}
	return ctx.Err()
}

// table is one whose last column is the machine's load.
type table struct {
	title string
	lines [][]string
}

func newTable(title string, columns ...string) *table {
	return &table{title, [][]string{append(columns, "load")}}
}

// row adds one, and says it.
func (s *scale) row(t *table, values ...any) {
	var cells []string
	for _, v := range values {
		if f, ok := v.(float64); ok {
			v = fmt.Sprintf("%.1f", f)
		}
		cells = append(cells, fmt.Sprint(v))
	}
	load, _ := os.ReadFile("/proc/loadavg")
	first, _, _ := strings.Cut(string(load), " ")
	cells = append(cells, first)
	t.lines = append(t.lines, cells)
	say(strings.Join(cells, " | "))
}

// write adds a table to the output.
func (s *scale) write(t *table) {
	fmt.Fprintf(&s.out, "\n**%s**\n\n", t.title)
	_ = bench.WriteMarkdown(&s.out, t.lines) // a Builder takes all
}

// look waits until a server has come to rest, and returns its memory in bytes and its
// processor time in % of a core.
func (s *scale) look(ctx context.Context, srv *suite.Server) (memory int64, cpu float64, err error) {
	wait.For(ctx, s.rest)
	before, _, err := srv.Processor()
	start := time.Now()
	wait.For(ctx, s.rest/2)
	after, _, err2 := srv.Processor()
	m, err3 := srv.Memory()
	return m.Resident(), 100 * float64(after-before) / float64(time.Since(start)), errors.Join(err, err2, err3, ctx.Err())
}

// grow adds to what a server has until there are count, and writes a table of what it
// takes. after is called after each step, for further cells: those of columns.
func (s *scale) grow(
	ctx context.Context, name, title string, srv *suite.Server, count int, columns []string,
	add func(first, n int) error, after func() ([]any, error),
) error {
	was, _, err := s.look(ctx, srv)
	if err != nil {
		return err
	}
	t := newTable(fmt.Sprintf("%s (%.1f MB with none)", title, float64(was)/1e6),
		append([]string{name, "resident, MB", "each of the last, KB", "at rest, % of a core", "the last made in, s"}, columns...)...)
	n := count / steps
	for step := range steps {
		start := time.Now()
		if err := add(step*n, n); err != nil {
			return err
		}
		took := time.Since(start)
		now, cpu, err := s.look(ctx, srv)
		if err != nil {
			return err
		}
		cells, err := after()
		if err != nil {
			return err
		}
		each := float64(now-was) / 1e3 / float64(n)
		s.row(t, append([]any{(step + 1) * n, float64(now) / 1e6, each, cpu, took.Seconds()}, cells...)...)
		was = now
	}
	s.write(t)
	return saveProfiles(ctx, srv.AdminPort, s.profiles, strings.ReplaceAll(name, " ", "-")+"-", "heap", "goroutine", "profile")
}

// nothing is for grow where there are no further cells.
func nothing() ([]any, error) { return nil, nil }

// measureTenants has tenants that each have an agent and a sidecar on every server.
func (s *scale) measureTenants(ctx context.Context, name string, count int) error {
	at, err := serve(ctx, s.suite, name, s.servers)
	if err != nil {
		return err
	}
	defer at.close()
	srv := at.servers[0]
	err = s.grow(ctx, name, fmt.Sprintf("Tenants of %d servers, on one of them", s.servers), srv, count, nil, at.join, nothing)
	if err != nil {
		return err
	}
	if err := s.pages(ctx, srv); err != nil {
		return err
	}
	if err := s.comeBack(at, name); err != nil {
		return err
	}
	held, err := bench.Hold(ctx, len(at.clusters), 0, at.open) // of each, to its own target
	if err == nil {
		held.Close()
	}
	return err
}

const (
	// looks is how often a page is asked for; the slowest counts. It rests between
	// two, as monitoring does, because the server delays clients that ask at once.
	looks     = 5
	lookPause = 200 * time.Millisecond
)

// pages writes a table of the pages that monitoring and people ask for.
func (s *scale) pages(ctx context.Context, srv *suite.Server) error {
	t := newTable("Pages of that server", "page", fmt.Sprintf("slowest of %d, ms", looks), "size, KB")
	for _, page := range []struct{ name, url string }{
		{"/metrics", srv.HealthURL("/metrics")},
		{"/api/v1/tenants", adminURL(srv.AdminPort, "/api/v1/tenants?limit=1000")},
		{"/api/v1/status", adminURL(srv.AdminPort, "/api/v1/status")},
	} {
		var slowest time.Duration
		var size int64
		for range looks {
			start := time.Now()
			n, err := get(ctx, page.url, io.Discard)
			if err != nil {
				return err
			}
			size, slowest = n, max(slowest, time.Since(start))
			wait.For(ctx, lookPause)
		}
		s.row(t, page.name, bench.Milliseconds(slowest), float64(size)/1e3)
	}
	s.write(t)
	return nil
}

// comeBack kills the first server and starts it again. It notes how soon all of its links were
// back, and what that took.
func (s *scale) comeBack(at *site, what string) error {
	srv := at.servers[0]
	old := make(map[*link.Session]bool)
	for _, p := range at.peers {
		if p.port == srv.AgentPort || p.port == srv.ClientPort {
			old[p.session.Load()] = true
		}
	}
	reviews, failures := s.reviews.Load(), at.failures()
	srv.Kill()
	start := time.Now()
	if err := s.suite.RunServer(srv, at.flags[0]...); err != nil {
		return err
	}
	if err := at.complete(old); err != nil {
		return err
	}
	back := time.Since(start)
	cpu, _, err := srv.Processor()
	m, err2 := srv.Memory()
	s.row(s.back, len(at.peers)/len(at.servers), what, back.Seconds(), cpu.Seconds(), float64(m.Most)/1e6, at.failures()-failures, s.reviews.Load()-reviews)
	return errors.Join(err, err2)
}

// Kinds of links beside "agents".
const (
	withTokens = "agents with tokens"
	sidecars   = "sidecars"
)

// measureLinks has agents or sidecars of one tenant, each at an address of its own, which
// all come back at once when their server was killed. Agents have one server, sidecars their
// part of them each.
func (s *scale) measureLinks(ctx context.Context, what string, count int) error {
	var more []string
	servers, title := 1, "Links of "+what
	if what == sidecars { // of one certificate, and so with one client's part of the budget
		servers, title = s.servers, fmt.Sprintf("Links of sidecars to %d servers, on one of them", s.servers)
		more = append(more, fmt.Sprintf("--memory-budget-mib=%d", budgetMiB+count/10))
	}
	at, err := serve(ctx, s.suite, strings.ReplaceAll(what, " ", "-"), servers, more...)
	if err != nil {
		return err
	}
	defer at.close()
	one, err := newIdentity(0, at.dir)
	if err != nil {
		return err
	}
	if what == withTokens {
		api, err := s.reviewTokens(one, at.dir)
		if err != nil {
			return err
		}
		defer api.Close()
	}
	err = s.grow(ctx, what, title, at.servers[0], count/servers, nil, func(first, n int) error {
		for k, srv := range at.servers {
			all := make([]identity, n)
			for i := range all {
				number := (first+i)*servers + k
				all[i] = one
				all[i].ID, all[i].From = fmt.Sprint(what, number), net.IPv4(127, 2, byte(number>>8), byte(number))
			}
			agentPort, clientPort := srv.AgentPort, 0
			if what == sidecars {
				agentPort, clientPort = 0, srv.ClientPort
			}
			if err := at.add(all, agentPort, clientPort); err != nil {
				return err
			}
		}
		return nil
	}, nothing)
	if err != nil {
		return err
	}
	return s.comeBack(at, what)
}

// reviewTokens has a tenant's agents need tokens, each of which an API reviews.
func (s *scale) reviewTokens(of identity, dir string) (*httptest.Server, error) {
	const answer = `{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "status": {"authenticated": true,
		"user": {"username": "system:serviceaccount:kube-system:konnectivity-agent"}, "audiences": ["bench"]}}`
	ca, err := pki.NewCA("api")
	if err != nil {
		return nil, err
	}
	pair, err := ca.Issue(pki.Leaf{CommonName: "api", IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true})
	if err != nil {
		return nil, err
	}
	api := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.reviews.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write([]byte(answer))
	}))
	api.TLS = &tls.Config{Certificates: []tls.Certificate{pair.TLS()}}
	api.StartTLS()
	config := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Config", "current-context": "c", "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
		"clusters": [{"name": "c", "cluster": {"server": %q, "certificate-authority-data": %q}}], "users": [{"name": "u", "user": {"token": "t"}}]}`, api.URL, base64.StdEncoding.EncodeToString(ca.CertPEM))
	settings := of.settings("tokens: {namespace: kube-system, serviceAccount: konnectivity-agent, audience: bench, kubeconfig: kubeconfig}\n")
	err = errors.Join(of.write(dir, "kubeconfig", []byte(config)), of.write(dir, "tenant.yaml", settings))
	return api, err
}

// measureConnections holds connections over 500 tenants, and makes new ones beside them.
func (s *scale) measureConnections(ctx context.Context, name string, count int) error {
	tenants := min(500, count)
	at, err := serve(ctx, s.suite, name, 1, fmt.Sprintf("--memory-budget-mib=%d", budgetMiB+count/50)) // 20 KiB for each that is held
	if err != nil {
		return err
	}
	defer at.close()
	if err := at.join(0, tenants); err != nil {
		return err
	}
	var held *bench.Held // of the last step
	title := fmt.Sprintf("Connections of %d tenants, and %d new ones a second beside them", tenants, s.rate)
	return s.grow(ctx, name, title, at.servers[0], count, []string{"dials", "failed", "p50, ms", "p99, ms", "processor time of a dial, ms"}, func(_, n int) (err error) {
		held, err = bench.Hold(ctx, n, 0, at.open)
		return err
	}, func() ([]any, error) {
		cells, err := s.churn(ctx, at)
		for _, conn := range held.Conns {
			if err == nil {
				err = echo(conn, "still open")
			}
		}
		return cells, err
	})
}

// churn makes connections to tenants at random.
func (s *scale) churn(ctx context.Context, at *site) ([]any, error) {
	srv := at.servers[0]
	before, _, err := srv.Processor()
	made := at.churn(ctx, s.rate, s.rest)
	after, _, err2 := srv.Processor()
	took, failed, why := made.take()
	if errors.Is(why, errCrossed) {
		return nil, why
	}
	if why != nil {
		say("a dial failed: " + why.Error())
	}
	s.failed += failed
	each := bench.Milliseconds(after-before) / float64(max(1, took.Count))
	return []any{took.Count, failed, bench.Milliseconds(took.P50), bench.Milliseconds(took.P99), fmt.Sprintf("%.2f", each)}, errors.Join(err, err2)
}
