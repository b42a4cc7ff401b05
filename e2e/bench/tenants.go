package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/bench"
	"konnectivity/internal/wait"
)

const (
	// restTime is how long the server rests before its memory is read: it returns
	// memory that it does not use after 15 s.
	restTime = 20 * time.Second

	// cpuProfileTime is the length of a CPU profile.
	cpuProfileTime = 15 * time.Second

	// budgetMiB is the largest default of the server's memory budget.
	budgetMiB = 256

	// looks is how often a page is asked for; the slowest counts. It rests between
	// two, as monitoring does, because the server delays clients that ask at once.
	looks     = 5
	lookPause = 200 * time.Millisecond
)

// tenants measures a server that many clusters share, each with an agent and a
// sidecar's link: its memory for each cluster, its processor time when nothing
// happens, how soon all are back after it was killed, and how long its pages take.
// The server is the built program; the links are real ones, by mTLS with a CA of each
// cluster's own, and all are held by this process.
type tenants struct {
	count       int           // clusters
	connections int           // that are opened and held, over all clusters
	rate        int           // new connections a second; 0 is none
	period      time.Duration // for which the server is watched, and connections are made
	settle      time.Duration // of noise: until changed bounds are in force, and loads run
	changeFor   time.Duration // for which tenants are changed; 0 is not at all
	profiles    string        // folder for the server's profiles; "" is none
	restart     bool
	say         func(string)

	suite  *suite.Suite
	dir    string // of the tenants, which the server reads
	server *suite.Server
	fleet  *fleet // nil before connect
	bare   int64  // the server's memory before connect, bytes
	kept   *bench.Held
	rep    *bench.Report
}

// benchTenants is `bench tenants`.
func benchTenants(ctx context.Context, args []string) error {
	t := &tenants{settle: noiseSettle, say: func(line string) { fmt.Fprintln(os.Stderr, line) }}
	set := flag.NewFlagSet("bench tenants", flag.ExitOnError)
	set.IntVar(&t.count, "tenants", 1000, "number of clusters")
	set.IntVar(&t.connections, "connections", 0, "connections to open and to hold, over all of them")
	set.IntVar(&t.rate, "rate", 0, "new connections a second, for as long as -for says; 0: none")
	set.DurationVar(&t.period, "for", 20*time.Second, "how long the server is watched, and connections are made")
	set.DurationVar(&t.changeFor, "churn", 0, "how long tenants are added, changed and removed at random, while a connection of each carries bytes that are checked; 0: not at all")
	set.StringVar(&t.profiles, "profiles", "", "directory to write the server's profiles to, of heap, goroutines and, while idle, processor time; empty: none")
	set.BoolVar(&t.restart, "restart", true, "kill the server and see how soon all are back")
	noise := set.Bool("noise", false, "measure instead what a cluster that makes noise leaves to a quiet one; the peers of each are a process")
	if err := set.Parse(args); err != nil {
		return err
	}
	if t.count < 1 || t.connections < 0 || t.rate < 0 || t.period <= 0 || t.changeFor < 0 {
		return errors.New("-tenants and -for must be positive, -connections, -rate and -churn not negative")
	}
	measure, title := t.measure, fmt.Sprintf("%d tenants, %d connections held, %d new ones a second", t.count, t.connections, t.rate)
	if *noise {
		measure, title = t.noise, "a quiet cluster beside one that makes noise"
	}
	if err := withSuite(func(s *suite.Suite) error { return measure(ctx, s) }); err != nil {
		return err
	}
	fmt.Printf("%s:\n\n", title)
	return t.rep.Table(os.Stdout, true)
}

// withSuite is withPrograms for those of a suite.
func withSuite(do func(*suite.Suite) error) error {
	return withPrograms(func(bin suite.Binaries, dir string) error {
		s, err := suite.New(bin, dir)
		if err != nil {
			return err
		}
		defer s.Close()
		return do(s)
	})
}

// prepare makes the folder of the tenants.
func (t *tenants) prepare(s *suite.Suite) error {
	t.suite, t.dir, t.rep = s, filepath.Join(s.Dir, "tenants"), bench.NewReport()
	return os.Mkdir(t.dir, 0o755)
}

// measure starts the server and the clusters, and takes one measurement after the
// other.
func (t *tenants) measure(ctx context.Context, s *suite.Suite) error {
	if err := t.prepare(s); err != nil {
		return err
	}
	defer t.close()
	steps := []func(context.Context) error{t.start, t.connect, t.idle, t.hold, t.dial, t.pages, t.change}
	if t.restart {
		steps = append(steps, t.kill)
	}
	for _, step := range steps {
		if err := step(ctx); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (t *tenants) note(what, unit string, value float64) {
	t.rep.Add("server", what, unit, value)
	t.say(fmt.Sprintf("%s: %.4g %s", what, value, unit))
}

// flags returns the server's flags.
func (t *tenants) flags() []string {
	budget := budgetMiB + t.connections/50 // 20 KiB for each that is held
	flags := []string{"--tenants-dir=" + t.dir, fmt.Sprintf("--memory-budget-mib=%d", budget)}
	if t.profiles != "" || t.changeFor > 0 {
		flags = append(flags, "--enable-profiling")
	}
	return flags
}

// start runs a server that has no tenant yet.
func (t *tenants) start(ctx context.Context) (err error) {
	t.suite.Descriptors = 4*t.count + 1024
	if t.server, err = t.suite.StartServer(t.flags()...); err != nil {
		return err
	}
	if t.bare, err = t.memory(ctx); err != nil {
		return err
	}
	t.note("memory with no tenant", "MB", float64(t.bare)/1e6)
	return nil
}

// connect makes the clusters and has their agents and sidecars connect.
func (t *tenants) connect(ctx context.Context) (err error) {
	all := make([]identity, t.count)
	for i := range all {
		if all[i], err = newIdentity(i, t.dir); err != nil {
			return fmt.Errorf("make %s: %w", all[i].Name, err)
		}
	}
	start := time.Now()
	t.fleet = newFleet(ctx)
	if err := t.fleet.add(all, t.server.AgentPort, t.server.ClientPort); err != nil {
		return err
	}
	t.note("all links made after", "s", time.Since(start).Seconds())
	full, err := t.memory(ctx)
	if err != nil {
		return err
	}
	t.note("memory with all tenants", "MB", float64(full)/1e6)
	t.note("memory for each tenant", "KB", float64(full-t.bare)/1e3/float64(t.count))
	return t.profile(ctx, "heap", "goroutine")
}

// memory returns the server's memory in bytes when it has come to rest.
func (t *tenants) memory(ctx context.Context) (int64, error) {
	wait.For(ctx, min(restTime, t.period))
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	m, err := t.server.Memory()
	return m.Resident(), err
}

// idle measures the server while nothing happens.
func (t *tenants) idle(ctx context.Context) error {
	work := func() (cpu time.Duration, sleeps int64, err error) {
		if cpu, _, err = t.server.Processor(); err == nil {
			sleeps, err = t.server.Sleeps()
		}
		return cpu, sleeps, err
	}
	cpu, sleeps, err := work()
	if err != nil {
		return err
	}
	start := time.Now()
	wait.For(ctx, t.period)
	cpuAfter, sleepsAfter, err := work()
	if err != nil {
		return err
	}
	took := time.Since(start)
	t.note("processor time when idle", "% of a core", 100*float64(cpuAfter-cpu)/float64(took))
	t.note("wake-ups for each tenant", "1/min", float64(sleepsAfter-sleeps)/float64(t.count)/took.Minutes())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return t.profile(ctx, "profile")
}

// hold opens the connections that are to stay open.
func (t *tenants) hold(ctx context.Context) (err error) {
	if t.connections == 0 {
		return nil
	}
	start := time.Now()
	if t.kept, err = bench.Hold(ctx, t.connections, 0, t.fleet.open); err == nil {
		t.note("connections opened in", "s", time.Since(start).Seconds())
	}
	return err
}

// dial makes new connections to clusters at random, and checks that those that are
// held still work.
func (t *tenants) dial(ctx context.Context) error {
	if t.rate > 0 {
		if err := t.noteDials("new connections", t.fleet.churn(ctx, t.rate, t.period)); err != nil {
			return err
		}
	}
	if t.kept == nil {
		return nil
	}
	for _, conn := range t.kept.Conns {
		if err := echo(conn, "still open"); err != nil {
			return fmt.Errorf("a connection that was held: %w", err)
		}
	}
	return nil
}

// noteDials returns an error only if a connection reached another cluster.
func (t *tenants) noteDials(what string, d *dials) error {
	took, failed, err := d.take()
	t.note(what, "", float64(took.Count))
	t.note(what+": failed", "", float64(failed))
	t.note(what+": dial p50", "ms", bench.Milliseconds(took.P50))
	t.note(what+": dial p99", "ms", bench.Milliseconds(took.P99))
	if errors.Is(err, errCrossed) {
		return err
	}
	if err != nil {
		t.say("a dial failed: " + err.Error())
	}
	return nil
}

// pages asks for the pages that monitoring and people ask for.
func (t *tenants) pages(ctx context.Context) error {
	for _, page := range []struct{ what, url string }{
		{"/metrics", t.server.HealthURL("/metrics")},
		{"/api/v1/tenants", t.adminURL("/api/v1/tenants?limit=1000")},
		{"/api/v1/status", t.adminURL("/api/v1/status")},
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
		t.note(page.what+": slowest of 5", "ms", bench.Milliseconds(slowest))
		t.note(page.what+": size", "KB", float64(size)/1e3)
	}
	return nil
}

func (t *tenants) adminURL(path string) string {
	return "http://" + suite.Loopback(t.server.AdminPort) + path
}

// kill kills the server and starts it again, with nothing open but links.
func (t *tenants) kill(context.Context) error {
	t.release()
	ready, back, failed, err := t.fleet.comeBack(t.suite, t.server, t.flags()...)
	if err != nil {
		return err
	}
	t.note("server ready after SIGKILL", "s", ready.Seconds())
	t.note("all links back after SIGKILL", "s", back.Seconds())
	t.note("attempts that failed meanwhile", "", float64(failed))
	if failed > 0 {
		_, why := t.fleet.failures()
		t.say("one of them: " + why.Error())
	}
	return nil
}

// release closes the connections that hold opened.
func (t *tenants) release() {
	if t.kept != nil {
		t.kept.Close()
		t.kept = nil
	}
}

// close ends all links.
func (t *tenants) close() {
	t.release()
	if t.fleet != nil {
		t.fleet.close()
	}
}

// profile writes profiles of the server as NAME.prof.
func (t *tenants) profile(ctx context.Context, names ...string) error {
	return saveProfiles(ctx, t.server, t.profiles, "", names...)
}

// saveProfiles writes profiles of a server to a folder, as names that begin with prefix;
// "" is no folder.
func saveProfiles(ctx context.Context, srv *suite.Server, folder, prefix string, names ...string) error {
	for _, name := range names {
		if folder == "" {
			break
		}
		url := "http://" + suite.Loopback(srv.AdminPort) + "/debug/pprof/" + name
		if name == "profile" {
			url += fmt.Sprintf("?seconds=%d", int(cpuProfileTime.Seconds()))
		}
		if err := download(ctx, url, filepath.Join(folder, prefix+name+".prof")); err != nil {
			return err
		}
	}
	return nil
}

// download writes a page to a file.
func download(ctx context.Context, url, file string) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	_, err = get(ctx, url, f)
	return errors.Join(err, f.Close())
}

// get copies a page, and returns its size in bytes.
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
