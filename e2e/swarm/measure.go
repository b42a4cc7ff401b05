package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"konnectivity/e2e/suite"
)

const (
	// startTime bounds how long all links may take to come about.
	startTime = 5 * time.Minute

	// rest is how long the server comes to rest before its memory is read: it
	// returns what it does not use after 15 s.
	rest = 20 * time.Second

	// looks is how often a page is asked for; the slowest counts.
	looks = 5
)

// options are the flags.
type options struct {
	tenants, connections, rate int
	period                     time.Duration
	restart                    bool
	say                        func(string)
}

// figure is one that was measured.
type figure struct{ what, value string }

// measure starts the server and everybody else, and measures one after the
// other.
func (o *options) measure(ctx context.Context, s *suite.Suite) (figures []figure, err error) {
	note := func(what, format string, args ...any) {
		figures = append(figures, figure{what, fmt.Sprintf(format, args...)})
		o.say(what + ": " + figures[len(figures)-1].value)
	}
	dir := filepath.Join(s.Dir, "tenants")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	s.Descriptors = 4*o.tenants + 1024
	srv, err := s.StartServer("--tenants-dir=" + dir)
	if err != nil {
		return nil, err
	}
	bare, err := o.settled(ctx, srv)
	if err != nil {
		return nil, err
	}
	note("server with no tenant, MB", "%.1f", float64(bare)/1e6)
	tenants, err := newTenants(o.tenants, dir)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	w := start(ctx, tenants, srv)
	defer w.close()
	limited, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if err := w.complete(limited, nil); err != nil {
		return nil, err
	}
	note("all links made after, s", "%.1f", time.Since(begin).Seconds())
	full, err := o.settled(ctx, srv)
	if err != nil {
		return nil, err
	}
	note("server with all of them, MB", "%.1f", float64(full)/1e6)
	note("for each tenant, KB", "%.1f", float64(full-bare)/1e3/float64(o.tenants))
	if err := o.idle(ctx, srv, note); err != nil {
		return nil, err
	}
	kept, err := o.load(ctx, w, note)
	if err != nil {
		return nil, err
	}
	if err := o.look(ctx, srv, note); err != nil {
		return nil, err
	}
	for _, c := range kept {
		_ = c.conn.Close()
	}
	if !o.restart {
		return figures, nil
	}
	old := w.sessions()
	before, _ := w.failures()
	srv.Kill()
	begin = time.Now()
	if err := s.RunServer(srv, "--tenants-dir="+dir); err != nil {
		return nil, err
	}
	note("server ready after SIGKILL, s", "%.1f", time.Since(begin).Seconds())
	if err := w.complete(limited, old); err != nil {
		return nil, err
	}
	note("all links back after SIGKILL, s", "%.1f", time.Since(begin).Seconds())
	failed, why := w.failures()
	note("attempts that failed meanwhile", "%d", failed-before)
	if failed > before {
		o.say("one of them: " + why.Error())
	}
	return figures, nil
}

// settled is the server's memory in bytes when it has come to rest.
func (o *options) settled(ctx context.Context, srv *suite.Server) (int64, error) {
	sleep(ctx, min(rest, o.period))
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return srv.Resident()
}

type noter func(what, format string, args ...any)

// idle measures what the server does while nobody does anything.
func (o *options) idle(ctx context.Context, srv *suite.Server, note noter) error {
	before, _, err := srv.Processor()
	if err != nil {
		return err
	}
	begin := time.Now()
	sleep(ctx, o.period)
	after, _, err := srv.Processor()
	if err != nil {
		return err
	}
	note("processor time when idle, % of a core", "%.2f", 100*float64(after-before)/float64(time.Since(begin)))
	return ctx.Err()
}

// load opens the connections to hold and makes new ones beside them.
func (o *options) load(ctx context.Context, w *swarm, note noter) ([]held, error) {
	begin := time.Now()
	kept, err := w.hold(ctx, o.connections)
	if err != nil {
		return nil, err
	}
	if o.connections > 0 {
		note("connections opened in, s", "%.1f", time.Since(begin).Seconds())
	}
	if o.rate > 0 {
		got := w.churn(ctx, o.rate, o.period)
		note("new connections", "%d", len(got.took))
		note("of them failed", "%d", got.failed)
		note("a dial, p50 and p99, ms", "%.2f and %.2f", ms(percentile(got.took, 0.5)), ms(percentile(got.took, 0.99)))
		if errors.Is(got.err, errCrossed) {
			return nil, got.err
		}
		if got.err != nil {
			o.say("a dial failed: " + got.err.Error())
		}
	}
	for _, c := range kept {
		if err := echo(c.conn, c.of.name); err != nil {
			return nil, fmt.Errorf("a connection of %s that was held: %w", c.of.name, err)
		}
	}
	return kept, nil
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// look asks for the pages that monitoring and people ask for.
func (o *options) look(ctx context.Context, srv *suite.Server, note noter) error {
	for _, page := range []struct{ what, url string }{
		{"/metrics", srv.HealthURL("/metrics")},
		{"/api/v1/tenants", "http://" + suite.Loopback(srv.AdminPort) + "/api/v1/tenants?limit=1000"},
		{"/api/v1/status", "http://" + suite.Loopback(srv.AdminPort) + "/api/v1/status"},
	} {
		var slowest time.Duration
		var size int64
		for range looks {
			begin := time.Now()
			n, err := get(ctx, page.url)
			if err != nil {
				return err
			}
			size, slowest = n, max(slowest, time.Since(begin))
		}
		note(page.what+": slowest of 5, ms; KB", "%.1f; %.1f", ms(slowest), float64(size)/1e3)
	}
	return nil
}

func get(ctx context.Context, url string) (int64, error) {
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
	n, err := io.Copy(io.Discard, res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s", url, res.Status)
	}
	return n, err
}
