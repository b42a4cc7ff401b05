package hostile

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// What a server may cost beside its idle self, and what others may notice.
const (
	maxGrowth = 64 << 20
	maxJoin   = 5 * time.Second

	// handshakeTime is how long an agent's try may take that comes to nothing.
	handshakeTime = 10 * time.Second
	maxHealth     = time.Second
)

// settleTime is how long an idle process is given before it is measured.
const settleTime = time.Second

// figures are what an attack cost.
type figures struct {
	idle, peak   int64 // bytes of its own
	health, join time.Duration
	probes       int
	joins        int
	opened       int64 // connections

	// crowding is by how much the process was slowed by others on the machine,
	// the attack and the agents among them: 1 is not at all.
	crowding float64
}

func (f figures) String() string {
	return fmt.Sprintf("%.1f MiB of its own idle, %.1f MiB at most (+%.1f); /healthz %v at most of %d probes; an agent in %v at most of %d; beside %d connections; slowed %.1f times by others on the machine",
		mib(f.idle), mib(f.peak), mib(f.peak-f.idle), f.health.Round(time.Millisecond), f.probes, f.join.Round(time.Millisecond), f.joins, f.opened, f.crowding)
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// watch looks at a process from its idle state until stop, which returns the
// figures without those of joins.
func watch(t *testing.T, p *suite.Process, healthURL string) (stop func() figures) {
	t.Helper()
	time.Sleep(settleTime)
	f := figures{idle: must(p.Memory())(t).Own}
	crowded := crowding(t, p.PID())
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looking.Go(func() {
		for pace(ctx, 20*time.Millisecond) {
			now, err := p.Memory()
			if err != nil {
				t.Error(err)
				return
			}
			f.peak = max(f.peak, now.Own)
		}
	})
	prober := startProber(t, healthURL)
	return func() figures {
		cancel()
		looking.Wait()
		f.probes, f.health = prober.stop(t)
		f.crowding = crowded()
		return f
	}
}

// crowding is by how much a process is slowed by others on the machine, from now on.
func crowding(t *testing.T, pid int) (since func() float64) {
	t.Helper()
	ranBefore, waitedBefore, err := suite.Processor(pid)
	testutil.NoError(t, err)
	return func() float64 {
		ran, waited, err := suite.Processor(pid)
		testutil.NoError(t, err)
		return 1 + float64(waited-waitedBefore)/float64(max(ran-ranBefore, 1))
	}
}

func pace(ctx context.Context, every time.Duration) bool {
	select {
	case <-time.After(every):
		return true
	case <-ctx.Done():
		return false
	}
}

// joinUntil starts one agent after the other until end, and returns how many
// there were and the longest that one took from its start to its readiness.
func joinUntil(t *testing.T, s *suite.Suite, srv *suite.Server, end time.Time, more ...string) (joins int, longest time.Duration) {
	t.Helper()
	for joins == 0 || time.Now().Before(end) {
		start := time.Now()
		a, err := s.StartAgent(srv, more...)
		longest = max(longest, time.Since(start))
		joins++
		testutil.Requires(t, err == nil, "an agent stays out: %v", err)
		a.Kill()
		time.Sleep(200 * time.Millisecond)
	}
	return joins, longest
}

// within fails the test for each figure beyond its bound. Bounds in time are
// those of a machine that nothing else uses: where others have the processors,
// everything takes that much longer.
func (f figures) within(t *testing.T) {
	t.Helper()
	t.Log(f)
	testutil.AtMost(t, mib(f.peak-f.idle), mib(maxGrowth), "MiB by which its memory grew")
	testutil.AtMost(t, f.health, f.slowed(maxHealth), "the time of /healthz")
	most := f.slowed(maxJoin)
	if *duration < time.Minute { // too short to tell one unlucky try, of 10 s, from many
		most += handshakeTime
	}
	testutil.AtMost(t, f.join, most, "the time that an agent took to get in")
}

func (f figures) slowed(bound time.Duration) time.Duration {
	return time.Duration(float64(bound) * f.crowding)
}
