package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/tunnel"
)

// echoRole makes the test binary a target of its own: its descriptors are not
// the test's, of which there would be too few.
const echoRole = "KONNECTIVITY_E2E_ECHO"

// TestEchoProcess is no test: it is what echoProcess runs.
func TestEchoProcess(t *testing.T) {
	if os.Getenv(echoRole) == "" {
		t.Skip("for other tests")
	}
	l := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	fmt.Println("echo", l.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the test that started this
		os.Exit(0)
	}()
	for {
		c, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, "the echoing process:", err)
			os.Exit(1)
		}
		go func() {
			defer c.Close()
			// Not by splice(2), which would hold two more descriptors.
			_, _ = io.CopyBuffer(struct{ io.Writer }{c}, struct{ io.Reader }{c}, make([]byte, 512))
		}()
	}
}

// echoProcess is an echoing target in another process.
func echoProcess(t *testing.T) (address string) {
	t.Helper()
	cmd := exec.Command(must(os.Executable())(t), "-test.run=^TestEchoProcess$")
	cmd.Env = append(os.Environ(), echoRole+"=1")
	in := must(cmd.StdinPipe())(t)
	out := must(cmd.StdoutPipe())(t)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { in.Close(); _ = cmd.Wait() })
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		if _, err := fmt.Sscanf(lines.Text(), "echo %s", &address); err == nil {
			return address
		}
	}
	t.Fatal("the echoing process said nothing")
	return ""
}

// Very many connections are held open at once through one server and ten
// agents, and each still carries bytes at the end.
func TestTenThousandConnectionsAreHeld(t *testing.T) {
	total := scaled(2000, 10_000)
	s := newSuite(t)
	target := echoProcess(t)
	srv := must(s.StartServer())(t)
	var agents []*suite.Agent
	for i := range 10 {
		agents = append(agents, must(s.StartAgent(srv, fmt.Sprintf("--agent-id=agent-%d", i)))(t))
	}
	dial := viaConnect("unix", srv.UDS, nil)
	ctx := within(t, 2*time.Minute)
	conns := make([]tunnel.Conn, total)
	each := func(do func(i int) error) {
		t.Helper()
		var wg sync.WaitGroup
		for worker := range 50 {
			wg.Go(func() {
				for i := worker; i < total; i += 50 {
					if err := do(i); err != nil {
						t.Errorf("connection %d: %v", i, err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	began := time.Now()
	each(func(i int) (err error) {
		conns[i], err = dial.Dial(ctx, tunnel.NewFlow("tcp", target))
		return err
	})
	t.Cleanup(func() {
		for _, c := range conns {
			if c != nil {
				_ = c.Close()
			}
		}
	})
	if t.Failed() {
		return
	}
	t.Logf("%d connections open after %v", total, time.Since(began))
	reaches(t, patience, srv.HealthURL("/metrics"), "server_established_connections", float64(total))
	for _, a := range agents {
		// By how long each has taken to answer, which on a busy machine differs much.
		if n := metric(a.HealthURL("/metrics"), "agent_open_endpoint_connections"); n < 1 || n > float64(total)/2 {
			t.Errorf("an agent carries %v of %d connections", n, total)
		}
	}
	time.Sleep(scaled(time.Second, 30*time.Second))
	each(func(i int) error {
		want := fmt.Sprintf("hello %05d", i)
		_ = conns[i].SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(conns[i], want); err != nil {
			return err
		}
		got := make([]byte, len(want))
		if _, err := io.ReadFull(conns[i], got); err != nil || string(got) != want {
			return fmt.Errorf("came back as %q, %w", got, err)
		}
		return nil
	})
	each(func(i int) error { return conns[i].Close() })
	reaches(t, patience, srv.HealthURL("/metrics"), "server_established_connections", 0)
	for _, p := range append([]*suite.Process{srv.Process}, agents[0].Process) {
		t.Logf("%s: %s", p.Name, memory(p))
	}
}

// memory is the most that a process has held.
func memory(p *suite.Process) string {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return "unknown"
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var kib int
		if _, err := fmt.Sscanf(lines.Text(), "VmHWM: %d kB", &kib); err == nil {
			return fmt.Sprintf("at most %d MiB resident", kib>>10)
		}
	}
	return "unknown"
}
