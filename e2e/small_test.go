package e2e

import (
	"os"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

// What the programs may take, in bytes. How much of a program's file is resident is the
// kernel's choice: it maps what the page cache has around a page that is touched, and
// everyone shares it. So the file has a bound, and what a process holds of its own.
const (
	maxServerFile, maxServerOwn   = 17_700_000, 8 << 20
	maxAgentFile, maxAgentOwn     = 16_900_000, 8 << 20
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
