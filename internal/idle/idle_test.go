package idle

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/cputime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDue(t *testing.T) {
	const busy, quiet = time.Second, time.Millisecond
	r := rest{left: rounds}
	var cpu time.Duration
	var allocated uint64
	look := func(used time.Duration, bytes uint64) bool {
		cpu += used
		allocated += bytes
		return r.due(cpu, allocated)
	}
	for i, step := range []struct {
		used  time.Duration
		bytes uint64
		want  bool
	}{
		{busy, 10 << 20, false}, // never in the middle of work
		{quiet, 0, true},
		{quiet, 0, true},
		{quiet, 0, false}, // enough
		{quiet, 1000, false},
		{quiet, 2 << 20, true}, // something happened
		{busy, 0, false},
		{quiet, 0, true},
		{quiet, 0, false},
	} {
		if got := look(step.used, step.bytes); got != step.want {
			t.Errorf("step %d: due %v, want %v", i, got, step.want)
		}
	}
}

func TestReleaseEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); Release(ctx) }()
	cancel()
	<-done
}

func TestFiguresMove(t *testing.T) {
	before := allocated()
	sink = make([]byte, 1<<20)
	if allocated()-before < 1<<20 {
		t.Error("an allocation did not count")
	}
	if cputime.Used() <= 0 {
		t.Error("no processor time used")
	}
}

var sink []byte
