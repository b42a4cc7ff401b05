package hostile

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"konnectivity/e2e/suite"
)

// What a server may cost beside its idle self, and what others may notice.
const (
	maxGrowth = 64 << 20
	maxJoin   = 5 * time.Second
	maxHealth = time.Second
)

// settleTime is how long an idle process is given before it is measured.
const settleTime = time.Second

// figures are what an attack cost.
type figures struct {
	idle, peak   int64 // bytes resident
	health, join time.Duration
	probes       int
	joins        int
}

func (f figures) String() string {
	return fmt.Sprintf("resident %.1f MiB idle, %.1f MiB at most (+%.1f); /healthz %v at most of %d probes; an agent in %v at most of %d",
		mib(f.idle), mib(f.peak), mib(f.peak-f.idle), f.health.Round(time.Millisecond), f.probes, f.join.Round(time.Millisecond), f.joins)
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// watch looks at a process from its idle state until stop, which returns the
// figures without those of joins.
func watch(t *testing.T, p *suite.Process, healthURL string) (stop func() figures) {
	t.Helper()
	time.Sleep(settleTime)
	f := figures{idle: must(p.Resident())(t)}
	ctx, cancel := context.WithCancel(t.Context())
	var looking sync.WaitGroup
	looking.Go(func() {
		for pace(ctx, 20*time.Millisecond) {
			now, err := p.Resident()
			if err != nil {
				t.Error(err)
				return
			}
			f.peak = max(f.peak, now)
		}
	})
	looking.Go(func() {
		for pace(ctx, 100*time.Millisecond) {
			took, err := probe(ctx, healthURL)
			if err != nil && ctx.Err() == nil {
				t.Errorf("/healthz: %v after %v", err, took)
			}
			f.probes++
			f.health = max(f.health, took)
		}
	})
	return func() figures {
		cancel()
		looking.Wait()
		return f
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

// probe asks as kubelet does: by a connection of its own.
func probe(ctx context.Context, url string) (took time.Duration, err error) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 10 * time.Second}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	res, err := client.Do(req)
	if err != nil {
		return time.Since(start), err
	}
	defer res.Body.Close()
	if _, err = io.Copy(io.Discard, res.Body); err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s", res.Status)
	}
	return time.Since(start), err
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
		if err != nil {
			t.Fatalf("an agent stays out: %v", err)
		}
		a.Kill()
		time.Sleep(200 * time.Millisecond)
	}
	return joins, longest
}

// within fails the test for each figure beyond its bound.
func (f figures) within(t *testing.T) {
	t.Helper()
	t.Log(f)
	if f.peak-f.idle > maxGrowth {
		t.Errorf("resident memory grew by %.1f MiB, want at most %.0f", mib(f.peak-f.idle), mib(maxGrowth))
	}
	if f.health > maxHealth {
		t.Errorf("/healthz took %v, want at most %v", f.health, maxHealth)
	}
	if f.join > maxJoin {
		t.Errorf("an agent took %v to get in, want at most %v", f.join, maxJoin)
	}
}
