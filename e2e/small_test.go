package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// What the programs may take, in bytes. How much of a program's file is resident is the
// kernel's choice: it maps what the page cache has around a page that is touched, and
// everyone shares it. So the file has a bound, and what a process holds of its own.
const (
	maxServerFile, maxServerOwn   = 17_700_000, 8 << 20
	maxAgentFile, maxAgentOwn     = 16_900_000, 8 << 20
	maxSidecarFile, maxSidecarOwn = 14_500_000, 6 << 20
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
	testutil.AtMost(t, m.Own, maxOwn, "%s: bytes of its own while idle", p.Name)
	testutil.AtMost(t, size, maxFile, "%s: bytes of the program file", p.Name)
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

const (
	// maxStartWork bounds the processor time that a sidecar takes from its start to its first
	// served request, and maxStart the whole time, with what other work of this machine adds,
	// but without a pause of half a second. One of maxStarts starts must keep to each.
	maxStartWork = 150 * time.Millisecond
	maxStart     = 500 * time.Millisecond
	maxStarts    = 50
)

// Sidecars run beside every component of every control plane: they must be
// small, and not what a pod's start waits for. Measured as `make build` makes
// them: stripped.
func TestSidecarsAreSmallAndStartFast(t *testing.T) {
	d := newDeployment(t)
	testutil.EachOf(t, []string{"konnectivity-socks5-proxy", "konnectivity-https-proxy"}, func(t *testing.T, program string) {
		var work, starts []time.Duration
		for last := false; !last; {
			port, health := testutil.Reserved(t), testutil.ReservedAddress(t)
			scheme := "socks5://"
			if strings.Contains(program, "https") {
				scheme = "http://"
			}
			begin := time.Now()
			p := must(suite.Start(program, binaries.Path(program), append(d.sidecarArgs(d.server.ClientPort),
				fmt.Sprintf("--serving-port=%d", port), "--health-address="+health), d.env))(t)
			t.Cleanup(p.Kill)
			for end := begin.Add(patience); ; time.Sleep(time.Millisecond) {
				_, err := getBy(scheme+suite.Loopback(port), "http://"+d.hosted.ip+":"+d.web.plain+"/x")
				if err == nil {
					starts = append(starts, time.Since(begin))
					ran, _, err := p.Processor()
					testutil.NoError(t, err)
					work = append(work, ran)
					break
				}
				if time.Now().After(end) {
					t.Fatal("never served", err, p.Output())
				}
			}
			last = len(starts) >= 5 && slices.Min(work) <= maxStartWork && slices.Min(starts) <= maxStart || len(starts) == maxStarts
			if last {
				// It comes to be idle, with its link and health up.
				isSmall(t, p, maxSidecarFile, maxSidecarOwn)
			}
			p.Kill()
		}
		slices.Sort(starts)
		slices.Sort(work)
		t.Logf("first request after %v, of which it works for %v", starts, work)
		testutil.Holds(t, starts[0] <= maxStart && work[0] <= maxStartWork,
			"the first request is served after %v at best, want %v, and takes %v of a processor, want %v", starts[0], maxStart, work[0], maxStartWork)
	})
}
