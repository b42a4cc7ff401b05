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

// What the programs may take, in bytes. How much of a program's file is resident is the
// kernel's choice: it maps what the page cache has around a page that is touched, and
// everyone shares it. So the file has a bound, and what a process holds of its own.
const (
	maxServerFile, maxServerOwn   = 20_000_000, 8 << 20
	maxAgentFile, maxAgentOwn     = 19_500_000, 8 << 20
	maxSidecarFile, maxSidecarOwn = 15_000_000, 6 << 20
)

// isSmall checks what a process that has nothing to do holds of its own, and the size
// of its program file. Should that be above the bound after the 2 s of e2e/bench, the
// process is given the time to return what its start took.
func isSmall(t *testing.T, p *suite.Process, maxFile, maxOwn int64) {
	t.Helper()
	var m suite.Memory
	for end := time.Now().Add(patience); ; {
		time.Sleep(2 * time.Second)
		if m = must(p.Memory())(t); m.Own <= maxOwn || time.Now().After(end) {
			break
		}
	}
	size := must(os.Stat(binaries.Path(p.Name)))(t).Size()
	t.Logf("%s: idle with %d KiB resident, %d of them its own; its program file has %d bytes", p.Name, m.Resident()>>10, m.Own>>10, size)
	if m.Own > maxOwn {
		t.Errorf("%s: idle with %d bytes of its own, want at most %d", p.Name, m.Own, maxOwn)
	}
	if size > maxFile {
		t.Errorf("%s: the program file has %d bytes, want at most %d", p.Name, size, maxFile)
	}
}

// Most of an idle process is its program file, so a library that is linked for little
// shows here first.
func TestServerAndAgentAreSmall(t *testing.T) {
	s := newSuite(t)
	server := must(s.StartServer())(t)
	agent := must(s.StartAgent(server))(t)
	isSmall(t, server.Process, maxServerFile, maxServerOwn)
	isSmall(t, agent.Process, maxAgentFile, maxAgentOwn)
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
