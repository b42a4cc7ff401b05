package e2e

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// patience is how long may take what takes moments on an idle machine. It is no
// claim: what is promised within a time has a bound of its own.
const patience = time.Minute

// stopwatch measures how long something takes the programs of a suite, without
// what their threads waited for a processor meanwhile: a promise is made for a
// machine that has one for them.
func stopwatch(s *suite.Suite) (took func() time.Duration) {
	waited := func() (sum time.Duration) {
		for _, p := range s.Processes() {
			_, w, _ := p.Processor() // 0 where it has ended
			sum += w
		}
		return sum
	}
	began, before := time.Now(), waited()
	return func() time.Duration { return time.Since(began) - max(0, waited()-before) }
}

// page is what a health or metrics URL answers, with the status; "" while
// nobody does.
func page(url string) (body string, status int) {
	client := http.Client{Timeout: patience}
	res, err := client.Get(url)
	if err != nil {
		return "", 0
	}
	defer res.Body.Close()
	all, _ := io.ReadAll(res.Body)
	return string(all), res.StatusCode
}

// metric is the value of one series on a page of metrics, by its name without
// the common prefix and its labels; -1 while it is not there.
func metric(url, series string) float64 {
	body, _ := page(url)
	return value(body, series)
}

// value is the same on a page that is known.
func value(body, series string) float64 {
	for line := range strings.Lines(body) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || strings.TrimPrefix(name, "konnectivity_network_proxy_") != series {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(value, &v); err == nil {
			return v
		}
	}
	return -1
}

// reaches waits until a series has a value.
func reaches(t testing.TB, bound time.Duration, url, series string, want float64) {
	t.Helper()
	eventually(t, bound, series, func() (bool, any) {
		got := metric(url, series)
		return got == want, got
	})
}

// connected waits until an agent is connected to that many servers.
func connected(t testing.TB, a *suite.Agent, servers int, bound time.Duration) {
	t.Helper()
	reaches(t, bound, a.HealthURL("/metrics"), "agent_open_server_connections", float64(servers))
}

// logged waits until a process has said something.
func logged(t testing.TB, p *suite.Process, bound time.Duration, what string) {
	t.Helper()
	eventually(t, bound, fmt.Sprintf("%s logs %q", p.Name, what), func() (bool, any) {
		return strings.Contains(p.Output(), what), p.Output()
	})
}

// anyPort is a port of the test for a flag.
func anyPort(t testing.TB) string {
	t.Helper()
	return fmt.Sprint(testutil.Reserved(t))
}

// livenessBound is the time within which a peer that is gone without a word is
// noticed, by default; slack is for a busy machine.
const (
	livenessBound = 20 * time.Second
	slack         = 30 * time.Second
)

// ready is how many agents' connections the server counts.
func ready(t *testing.T, srv *suite.Server, want float64, bound time.Duration) {
	t.Helper()
	reaches(t, bound, srv.HealthURL("/metrics"), "server_ready_backend_connections", want)
}

// outcome of one echo over a connection of its own.
type outcome struct {
	took time.Duration
	err  error
}

func echoOnce(d tunnel.Dialer, target string) outcome {
	start := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err := func() error {
		c, err := d.Dial(ctx, tunnel.NewFlow("tcp", target))
		if err != nil {
			return err
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write([]byte("ping")); err != nil {
			return err
		}
		_, err = io.ReadFull(c, make([]byte, 4))
		return err
	}()
	return outcome{time.Since(start), err}
}
