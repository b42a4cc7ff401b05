package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// The first screen: what a person sees of a command's output in a usual
// terminal without scrolling.
const (
	screenRows    = 24
	screenColumns = 90
)

// faulty is a suite in which something is about to break, with everything that
// an operator would give to konnectivity check and status.
type faulty struct {
	*suite.Suite
	server    *suite.Server
	agent     *suite.Agent
	socks     *suite.Sidecar
	socksAt   string // its admin port
	reachable string // an echo server behind the agent
}

// newFaulty starts a server, an agent and a SOCKS5 sidecar that work. The flags
// are added to the server's and the agent's. A dial may take as long as by default, which
// check has patience for.
func newFaulty(t *testing.T, serverArgs, agentArgs []string) *faulty {
	t.Helper()
	f := &faulty{Suite: newSuite(t), reachable: testutil.Echo(t)}
	f.server = must(f.StartServer(append([]string{"--server-id=server-1", "--backend-dial-timeout=10s"}, serverArgs...)...))(t)
	f.agent = must(f.StartAgent(f.server, append([]string{"--agent-id=agent-1"}, agentArgs...)...))(t)
	f.socksAt = suite.Loopback(testutil.Reserved(t))
	f.socks = must(f.StartSOCKS5(f.server, "--admin-address="+f.socksAt))(t)
	return f
}

func (f *faulty) serverAt() string { return suite.Loopback(f.server.AdminPort) }

func agentAt(a *suite.Agent) string { return suite.Loopback(a.AdminPort) }

// operator runs the operator's program in a terminal of the usual size, and
// returns its exit status and its first screen.
func operator(t *testing.T, s *suite.Suite, args ...string) (status int, screen string) {
	t.Helper()
	cmd := exec.CommandContext(within(t, 2*time.Minute), s.Bin.Path("konnectivity"), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir(), fmt.Sprintf("COLUMNS=%d", screenColumns)}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("konnectivity %q: %v\n%s", args, err, out.String())
	}
	return cmd.ProcessState.ExitCode(), firstScreen(out.String())
}

// firstScreen breaks lines as a terminal does.
func firstScreen(out string) string {
	var rows []string
	for line := range strings.Lines(out) {
		line = strings.TrimSuffix(line, "\n")
		for utf8.RuneCountInString(line) > screenColumns {
			runes := []rune(line)
			rows = append(rows, string(runes[:screenColumns]))
			line = string(runes[screenColumns:])
		}
		rows = append(rows, line)
	}
	return strings.Join(rows[:min(len(rows), screenRows)], "\n")
}

// tells says whether a screen has all words, in whatever way they are spread
// over its lines.
func tells(screen string, words ...string) bool {
	text := strings.Join(strings.Fields(screen), " ")
	for _, w := range words {
		if !strings.Contains(text, w) {
			return false
		}
	}
	return true
}

// check runs konnectivity check with the sidecar's flags as an operator would
// paste them; more override. target may be "".
func (f *faulty) check(t *testing.T, target string, more ...string) (status int, screen string) {
	t.Helper()
	args := []string{"check", "--konnectivity-hostname=127.0.0.1", fmt.Sprintf("--konnectivity-port=%d", f.server.ClientPort),
		"--ca-cert-path=" + f.PKI("ca.crt"), "--tls-cert-path=" + f.PKI("client.crt"), "--tls-key-path=" + f.PKI("client.key"),
		"--serving-port=0", "--server-admin=" + f.serverAt()}
	args = append(args, more...)
	if target != "" {
		args = append(args, target)
	}
	return operator(t, f.Suite, args...)
}

// checkTells wants check to fail and to name the cause. It asks again if need be:
// within the seconds that a step has, a busy machine may not answer at all.
func (f *faulty) checkTells(t *testing.T, words ...string) {
	t.Helper()
	status, screen := 0, ""
	for range 3 {
		status, screen = f.check(t, f.reachable)
		t.Logf("check, status %d:\n%s", status, screen)
		if status == 1 && tells(screen, words...) {
			return
		}
	}
	t.Errorf("check does not tell %q; status %d, its first screen is\n%s", words, status, screen)
}

// statusTells wants status to name the cause within a while.
func (f *faulty) statusTells(t *testing.T, bound time.Duration, at string, words ...string) {
	t.Helper()
	seen := ""
	eventually(t, bound, fmt.Sprintf("status of %s tells %q", at, words), func() (bool, any) {
		_, seen = operator(t, f.Suite, "status", at)
		return tells(seen, words...), "\n" + seen
	})
	t.Logf("status:\n%s", seen)
}

// well wants check and status to find no fault.
func (f *faulty) well(t *testing.T) {
	t.Helper()
	well := func(status int, screen string) bool {
		return status == 0 && !strings.ContainsAny(screen, "✘!") && tells(screen, "✔ SOCKS5 sidecar", "✔ connection as by SOCKS5")
	}
	status, screen := 0, ""
	for range 3 { // as checkTells
		if status, screen = f.check(t, f.reachable, fmt.Sprintf("--serving-port=%d", f.socks.Port)); well(status, screen) {
			break
		}
	}
	testutil.Holds(t, well(status, screen), "status %d\n%s", status, screen)
	for _, at := range []string{f.serverAt(), agentAt(f.agent), f.socksAt} {
		if status, screen := operator(t, f.Suite, "status", at); status != 0 || strings.Contains(screen, "✘") || !tells(screen, "ready") {
			t.Errorf("%s: %d\n%s", at, status, screen)
		} else {
			t.Log("\n" + screen)
		}
	}
}

// whileFrozen freezes the agent and returns once told has seen it reported as frozen, which it
// is until the server gives it up, after livenessBound. If a busy machine asks too late for
// that, the agent is thawed until that many agents are connected, and frozen again.
func (f *faulty) whileFrozen(t *testing.T, agents float64, told func() bool) {
	t.Helper()
	for range 4 {
		_ = f.agent.Signal(suite.Freeze)
		if told() {
			return
		}
		_ = f.agent.Signal(suite.Thaw)
		eventually(t, patience, "the agent is back", func() (bool, any) {
			answer, status := page(f.agent.HealthURL("/readyz"))
			return status == 200, answer
		})
		ready(t, f.server, agents, patience)
	}
	t.Error("it is not told of the frozen agent that it does not answer")
}

func TestFaultAgentFrozen(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"auto", "off"} {
		t.Run("one agent, link "+mode, func(t *testing.T) {
			t.Parallel()
			f := newFaulty(t, nil, []string{"--link=" + mode})
			// Over gRPC it cannot be told from one whose connection was cut.
			silent, gone := "the agent does not answer", "it fell silent"
			if mode == "off" {
				silent, gone = "the agent hangs", "its connection ended without notice"
			}
			f.whileFrozen(t, 1, func() bool {
				status, screen := f.check(t, f.reachable)
				t.Logf("check, status %d:\n%s", status, screen)
				return status == 1 && tells(screen, "it went by agent agent-1", silent)
			})
			f.statusTells(t, livenessBound+slack, f.serverAt(), "no agent is connected to server-1", "the last, agent-1", gone)
			f.checkTells(t, "no agent is connected to server-1", "the last, agent-1", gone)
		})
	}
	t.Run("one of two agents", func(t *testing.T) {
		t.Parallel()
		f := newFaulty(t, nil, nil)
		must(f.StartAgent(f.server, "--agent-id=agent-2"))(t)
		f.whileFrozen(t, 2, func() bool {
			words := []string{"agent agent-1 at 127.0.0.1", "does not answer"}
			seen := ""
			for end := time.Now().Add(livenessBound); !tells(seen, words...); time.Sleep(50 * time.Millisecond) {
				if time.Now().After(end) {
					return false
				}
				_, seen = operator(t, f.Suite, "status", f.serverAt())
			}
			status, screen := f.check(t, "")
			t.Logf("status:\n%s\ncheck, status %d:\n%s", seen, status, screen)
			return status == 1 && tells(screen, words...)
		})
		f.statusTells(t, livenessBound+slack, f.serverAt(), "agent agent-1 at 127.0.0.1", "was lost", "it fell silent")
	})
}

// First nothing is wrong, then agents go, one by one, and at last the server.
func TestFaultGone(t *testing.T) {
	t.Parallel()
	f := newFaulty(t, nil, nil)
	f.well(t)
	second := must(f.StartAgent(f.server, "--agent-id=agent-2"))(t)
	second.Kill()
	f.statusTells(t, slack, f.serverAt(), "agent agent-2 at 127.0.0.1", "was lost", "its connection ended without notice")
	f.agent.Kill()
	f.statusTells(t, slack, f.serverAt(), "no agent is connected to server-1", "the last, agent-1", "its connection ended without notice")
	f.checkTells(t, "no agent is connected to server-1", "the last, agent-1", "its connection ended without notice")
	third := must(f.StartAgent(f.server, "--agent-id=agent-3"))(t)
	_, _ = third.Stop()
	f.checkTells(t, "no agent is connected to server-1", "the last, agent-3", "it was shut down in an orderly way")
	f.agent = must(f.StartAgent(f.server, "--agent-id=agent-4"))(t)
	f.server.Kill()
	f.checkTells(t, "connection refused", "Nobody listens on that port")
	f.statusTells(t, slack, agentAt(f.agent), "not ready: no servers connected", "connection refused")
	f.statusTells(t, slack, f.socksAt, "not ready: the konnectivity server refuses connections")
}
