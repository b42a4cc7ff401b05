package e2e

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// quick is well below the grace of who is not to wait for it.
const quick = patience

// stopping is a program under test, a connection that goes through it, and
// whether something else is between.
type stopping struct {
	name string
	via  func(w *whole) string // the route of the connection
	proc func(w *whole) *suite.Process
}

func stoppings() []stopping {
	return []stopping{
		{"server", func(*whole) string { return "mtls" }, func(w *whole) *suite.Process { return w.server.Process }},
		{"agent", func(*whole) string { return "uds" }, func(w *whole) *suite.Process { return w.agent.Process }},
		{"socks5 sidecar", func(*whole) string { return "socks5" }, func(w *whole) *suite.Process { return w.socks.Process }},
		{"https sidecar", func(*whole) string { return "https" }, func(w *whole) *suite.Process { return w.https.Process }},
	}
}

// withGrace is a whole suite whose programs, told to stop, wait that long for their connections.
func withGrace(t *testing.T, grace string) *whole {
	t.Helper()
	grant := []string{"--graceful-shutdown-timeout=" + grace}
	return newWholeOf(t, flags{server: grant, agent: grant, sidecars: []string{"--drain-timeout=" + grace}})
}

// through opens a connection by a route to an echoing target.
func (w *whole) through(t *testing.T, name string) tunnel.Conn {
	t.Helper()
	for _, r := range w.routes(t) {
		if r.name == name {
			c := dialed(t, r, testutil.Echo(t))
			pingPong(t, c, "open")
			return c
		}
	}
	t.Fatal("no route " + name)
	return nil
}

// exits waits for a process to end with a status.
func exits(t *testing.T, p *suite.Process, status int) {
	t.Helper()
	code, err := p.Wait(quick)
	testutil.Requires(t, err == nil && code == status, "%s: exit status %d, %v; want %d", p.Name, code, err, status)
}

// What SIGTERM means, to every program alike.
func TestSIGTERM(t *testing.T) {
	t.Parallel()
	for _, s := range stoppings() {
		t.Run(s.name, func(t *testing.T) {
			t.Run("busy: drains, and exits 0 with the last connection", func(t *testing.T) {
				t.Parallel()
				w := withGrace(t, "1h")
				c := w.through(t, s.via(w))
				w.drains(t, s)
				time.Sleep(2 * time.Second) // longer than any program takes to go when idle
				pingPong(t, c, "still served")
				w.noNewcomers(t, s)
				_ = c.Close()
				exits(t, s.proc(w), 0)
			})
			t.Run("second signal: exits 1 at once", func(t *testing.T) {
				t.Parallel()
				w := withGrace(t, "1h")
				c := w.through(t, s.via(w))
				w.drains(t, s)
				time.Sleep(500 * time.Millisecond)
				pingPong(t, c, "still served")
				_ = s.proc(w).Signal(syscall.SIGTERM)
				exits(t, s.proc(w), 1)
			})
		})
	}
}

// Whoever has connections when its grace ends cuts them, and exits 0.
func TestGracesEnd(t *testing.T) {
	t.Parallel()
	w := withGrace(t, "1s")
	for _, s := range slices.Backward(stoppings()) { // those that others go through come last
		if s.proc(w) == w.server.Process {
			w.agent = must(w.StartAgent(w.server))(t)
		}
		_ = w.through(t, s.via(w))
		_ = s.proc(w).Signal(syscall.SIGTERM)
		exits(t, s.proc(w), 0)
	}
}

// drains tells a program to end, and waits until it has heard, and whoever it
// tells, too.
func (w *whole) drains(t *testing.T, s stopping) {
	t.Helper()
	_ = s.proc(w).Signal(syscall.SIGTERM)
	eventually(t, patience, s.name+" drains", func() (bool, any) {
		out := s.proc(w).Output()
		return strings.Contains(out, "open connections may finish") || strings.Contains(out, "draining: servers were told"), out
	})
	if s.proc(w) == w.agent.Process {
		eventually(t, patience, "the server knows", func() (bool, any) {
			peers, _ := page("http://" + suite.Loopback(w.server.AdminPort) + "/api/v1/peers")
			return strings.Contains(peers, `"draining":true`), peers
		})
	}
}

// noNewcomers sees that a draining program is given nothing new.
func (w *whole) noNewcomers(t *testing.T, s stopping) {
	t.Helper()
	switch p := s.proc(w); p {
	case w.server.Process:
		body, code := page(w.server.HealthURL("/readyz"))
		testutil.Holds(t, code != 200, "a draining server says that it is ready: %s", body)
		refusesTCP(t, w.server.ClientPort)
		refusesTCP(t, w.server.AgentPort)
	case w.agent.Process:
		// It is the last resort while there is no other, and no more than that.
		other := must(w.StartAgent(w.server))(t)
		ready(t, w.server, 2, patience) // the one that goes counts until it has gone
		for range 20 {
			w.through(t, s.via(w)).Close()
		}
		reaches(t, patience, other.HealthURL("/metrics"), "agent_dial_duration_seconds_count", 20)
	case w.socks.Process:
		refusesTCP(t, w.socks.Port)
	default:
		refusesTCP(t, w.https.Port)
	}
}

func refusesTCP(t *testing.T, port int) {
	t.Helper()
	eventually(t, patience, fmt.Sprintf("port %d takes no new connections", port), func() (bool, any) {
		c, err := net.Dial("tcp", suite.Loopback(port))
		if err == nil {
			c.Close()
		}
		return err != nil, "it does"
	})
}
