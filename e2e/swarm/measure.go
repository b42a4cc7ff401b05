package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/tunnel/link"
)

const (
	// startTime bounds how long all links may take to come about.
	startTime = 5 * time.Minute

	// rest is how long the server comes to rest before its memory is read: it
	// returns what it does not use after 15 s.
	rest = 20 * time.Second

	// profileTime is how long the processor's is taken.
	profileTime = 15 * time.Second

	// budgetMiB is what the server's memory budget is by default, at most.
	budgetMiB = 256

	// looks is how often a page is asked for; the slowest counts. Between two it
	// rests, as monitoring does, since the server makes those wait that ask at once.
	looks     = 5
	lookPause = 200 * time.Millisecond
)

// options are the flags.
type options struct {
	tenants, connections, rate int
	period                     time.Duration
	settle                     time.Duration // of noise
	changeFor                  time.Duration // 0: nothing is changed
	restart                    bool
	profiles                   string // where to write them; "": nowhere
	say                        func(string)
}

// figure is one that was measured.
type figure struct{ what, value string }

// trial is a server with all who are connected to it, and what was measured of
// it so far.
type trial struct {
	*options
	suite   *suite.Suite
	dir     string // of the tenants
	server  *suite.Server
	swarm   *swarm // nil before connect
	bare    int64  // the server's memory before connect, bytes
	kept    []held
	figures []figure
}

// measure starts the server and everybody else, and measures one after the
// other.
func (o *options) measure(ctx context.Context, s *suite.Suite) ([]figure, error) {
	t := &trial{options: o, suite: s, dir: filepath.Join(s.Dir, "tenants")}
	defer t.close()
	steps := []func(context.Context) error{t.start, t.connect, t.idle, t.hold, t.churn, t.look, t.change}
	if o.restart {
		steps = append(steps, t.comeBack)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return t.figures, nil
}

func (t *trial) note(what, format string, args ...any) {
	f := figure{what, fmt.Sprintf(format, args...)}
	t.figures = append(t.figures, f)
	t.say(f.what + ": " + f.value)
}

// flags are the server's.
func (t *trial) flags() []string {
	budget := budgetMiB + t.connections/50 // 20 KiB for each that is held
	flags := []string{"--tenants-dir=" + t.dir, fmt.Sprintf("--memory-budget-mib=%d", budget)}
	if t.profiles != "" || t.changeFor > 0 {
		flags = append(flags, "--enable-profiling")
	}
	return flags
}

// start runs a server that has no tenant yet.
func (t *trial) start(ctx context.Context) (err error) {
	if err := os.Mkdir(t.dir, 0o755); err != nil {
		return err
	}
	t.suite.Descriptors = 4*t.tenants + 1024
	if t.server, err = t.suite.StartServer(t.flags()...); err != nil {
		return err
	}
	if t.bare, err = t.settled(ctx); err != nil {
		return err
	}
	t.note("server with no tenant, MB", "%.1f", float64(t.bare)/1e6)
	return nil
}

// connect makes the tenants and has their agents and sidecars connect.
func (t *trial) connect(ctx context.Context) error {
	tenants, err := newTenants(t.tenants, t.dir)
	if err != nil {
		return err
	}
	begin := time.Now()
	t.swarm = start(ctx, tenants, t.server)
	if err := t.complete(ctx, nil); err != nil {
		return err
	}
	t.note("all links made after, s", "%.1f", time.Since(begin).Seconds())
	full, err := t.settled(ctx)
	if err != nil {
		return err
	}
	t.note("server with all of them, MB", "%.1f", float64(full)/1e6)
	t.note("for each tenant, KB", "%.1f", float64(full-t.bare)/1e3/float64(t.tenants))
	return t.profile(ctx, "heap", "goroutine")
}

// complete waits for all links, none of which is to be an old one.
func (t *trial) complete(ctx context.Context, old map[*link.Session]bool) error {
	limited, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	return t.swarm.complete(limited, old)
}

// settled is the server's memory in bytes when it has come to rest.
func (t *trial) settled(ctx context.Context) (int64, error) {
	sleep(ctx, min(rest, t.period))
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	m, err := t.server.Memory()
	return m.Resident(), err
}

// idle measures what the server does while nobody does anything.
func (t *trial) idle(ctx context.Context) error {
	before, _, err := t.server.Processor()
	if err != nil {
		return err
	}
	awake, err := t.server.Sleeps()
	if err != nil {
		return err
	}
	begin := time.Now()
	sleep(ctx, t.period)
	after, _, err := t.server.Processor()
	if err != nil {
		return err
	}
	asleep, err := t.server.Sleeps()
	if err != nil {
		return err
	}
	took := time.Since(begin)
	t.note("processor time when idle, % of a core", "%.2f", 100*float64(after-before)/float64(took))
	t.note("wake-ups for each tenant and minute", "%.0f", float64(asleep-awake)/float64(t.tenants)/took.Minutes())
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.profile(ctx, "profile")
}

// hold opens the connections that are to stay open.
func (t *trial) hold(ctx context.Context) (err error) {
	if t.connections == 0 {
		return nil
	}
	begin := time.Now()
	if t.kept, err = t.swarm.hold(ctx, t.connections); err != nil {
		return err
	}
	t.note("connections opened in, s", "%.1f", time.Since(begin).Seconds())
	return nil
}

// churn makes new connections, and sees that those that are held still work.
func (t *trial) churn(ctx context.Context) error {
	if t.rate > 0 {
		got := t.swarm.churn(ctx, t.rate, t.period)
		t.note("new connections", "%d", len(got.took))
		t.note("of them failed", "%d", got.failed)
		t.note("a dial, p50 and p99, ms", "%.2f and %.2f", ms(percentile(got.took, 0.5)), ms(percentile(got.took, 0.99)))
		if errors.Is(got.err, errCrossed) {
			return got.err
		}
		if got.err != nil {
			t.say("a dial failed: " + got.err.Error())
		}
	}
	for _, c := range t.kept {
		if err := echo(c.conn, c.of.name); err != nil {
			return fmt.Errorf("a connection of %s that was held: %w", c.of.name, err)
		}
	}
	return nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// look asks for the pages that monitoring and people ask for.
func (t *trial) look(ctx context.Context) error {
	for _, page := range []struct{ what, url string }{
		{"/metrics", t.server.HealthURL("/metrics")},
		{"/api/v1/tenants", "http://" + suite.Loopback(t.server.AdminPort) + "/api/v1/tenants?limit=1000"},
		{"/api/v1/status", "http://" + suite.Loopback(t.server.AdminPort) + "/api/v1/status"},
	} {
		var slowest time.Duration
		var size int64
		for range looks {
			begin := time.Now()
			n, err := get(ctx, page.url, io.Discard)
			if err != nil {
				return err
			}
			size, slowest = n, max(slowest, time.Since(begin))
			sleep(ctx, lookPause)
		}
		t.note(page.what+": slowest of 5, ms; KB", "%.1f; %.1f", ms(slowest), float64(size)/1e3)
	}
	return nil
}

// comeBack kills the server and starts it again, with nothing open but links.
func (t *trial) comeBack(ctx context.Context) error {
	t.letGo()
	old := t.swarm.sessions()
	before, _ := t.swarm.failures()
	t.server.Kill()
	begin := time.Now()
	if err := t.suite.RunServer(t.server, t.flags()...); err != nil {
		return err
	}
	t.note("server ready after SIGKILL, s", "%.1f", time.Since(begin).Seconds())
	if err := t.complete(ctx, old); err != nil {
		return err
	}
	t.note("all links back after SIGKILL, s", "%.1f", time.Since(begin).Seconds())
	failed, why := t.swarm.failures()
	t.note("attempts that failed meanwhile", "%d", failed-before)
	if failed > before {
		t.say("one of them: " + why.Error())
	}
	return nil
}

// letGo closes what hold opened.
func (t *trial) letGo() {
	for _, c := range t.kept {
		_ = c.conn.Close()
	}
	t.kept = nil
}

// close ends everybody but the server.
func (t *trial) close() {
	t.letGo()
	if t.swarm != nil {
		t.swarm.close()
	}
}

// profile writes profiles of the server as NAME.prof.
func (t *trial) profile(ctx context.Context, names ...string) error {
	if t.profiles == "" {
		return nil
	}
	for _, name := range names {
		url := fmt.Sprintf("http://%s/debug/pprof/%s?seconds=%d", suite.Loopback(t.server.AdminPort), name, int(profileTime.Seconds()))
		if name != "profile" {
			url, _, _ = strings.Cut(url, "?")
		}
		file, err := os.Create(filepath.Join(t.profiles, name+".prof"))
		if err != nil {
			return err
		}
		_, err = get(ctx, url, file)
		if err := errors.Join(err, file.Close()); err != nil {
			return err
		}
	}
	return nil
}

func get(ctx context.Context, url string, to io.Writer) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, roundTime)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	n, err := io.Copy(to, res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, res.Status)
	}
	return n, err
}
