package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

// What a server and an agent may hold that have nothing to do, in KiB.
const (
	maxIdleServerKB = 25_000_000 >> 10
	maxIdleAgentKB  = 20_000_000 >> 10
)

// restsAt is what a process holds at rest, in KiB, of which file is what it shares
// with its program file. Should that be above a bound after the 2 s of e2e/bench,
// the process is given the time to return what its start took.
func restsAt(t *testing.T, p *suite.Process, bound int) (total, file int) {
	t.Helper()
	for end := time.Now().Add(patience); ; {
		time.Sleep(2 * time.Second)
		if total, file = residentKB(t, p.PID()); total <= bound || time.Now().After(end) {
			return total, file
		}
	}
}

// Most of an idle process is the pages of its program file that it has touched,
// so a library that is linked for little shows here first.
func TestServerAndAgentAreSmall(t *testing.T) {
	s := newSuite(t)
	server := must(s.StartServer())(t)
	agent := must(s.StartAgent(server))(t)
	for _, c := range []struct {
		p   *suite.Process
		max int
	}{{server.Process, maxIdleServerKB}, {agent.Process, maxIdleAgentKB}} {
		resident, file := restsAt(t, c.p, c.max)
		t.Logf("%s: idle %d KiB resident, %d of them the program file's", c.p.Name, resident, file)
		if resident > c.max {
			t.Errorf("%s: idle with %d KiB resident, want at most %d", c.p.Name, resident, c.max)
		}
	}
}

// The runtime collects in time to stay below the limit of the cgroup, unless the
// user gave it another one. The programs' common start sees to it; this one is
// quick to end, since its flags are wrong.
func TestMemoryLimitOfTheCgroup(t *testing.T) {
	group := filepath.Join("/sys/fs/cgroup/memory", "konnectivity-"+strconv.Itoa(os.Getpid()))
	if err := os.Mkdir(group, 0o755); err != nil {
		t.Skip("only root can make a cgroup, here only of version 1:", err)
	}
	t.Cleanup(func() { _ = os.Remove(group) })
	if err := os.WriteFile(filepath.Join(group, "memory.limit_in_bytes"), []byte("134217728"), 0o644); err != nil {
		t.Skip("no limit can be set here:", err)
	}
	if out, err := exec.Command("/bin/sh", "-c", "echo $$ > "+group+"/cgroup.procs && cat /proc/self/cgroup").CombinedOutput(); err != nil || !strings.Contains(string(out), filepath.Base(group)) {
		t.Skipf("no process can be put into a cgroup here: %v %s", err, out)
	}
	for env, want := range map[string]int{"GOMEMLIMIT=": 134217728 / 100 * 90, "GOMEMLIMIT=100MiB": 100 << 20} {
		script := fmt.Sprintf("echo $$ > %s/cgroup.procs && exec %s --serving-address=wrong --log-level=debug",
			group, binaries.Path("konnectivity-socks5-proxy"))
		p := must(suite.Start("sh", "/bin/sh", []string{"-c", script}, []string{env}))(t)
		must(p.Wait(time.Minute))(t)
		if line := fmt.Sprintf(`"memory_limit_bytes":%d,`, want); !strings.Contains(p.Output(), line) {
			t.Errorf("with %s want %s in %s", env, line, p.Output())
		}
	}
}
