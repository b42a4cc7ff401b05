package idle

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/cputime"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestDue(t *testing.T) {
	const busy, quiet = time.Second, time.Millisecond
	var r rest
	var cpu time.Duration
	var now heap
	for i, step := range []struct {
		used        time.Duration
		bytes, live uint64
		want        bool
	}{
		{busy, 10 << 20, 0, false}, // never in the middle of work
		{quiet, 0, 0, true},
		{quiet, 0, 0, false}, // enough
		{quiet, 1000, 0, false},
		{quiet, 2 << 20, 0, true}, // something happened
		{busy, 2 << 20, 0, false},
		{quiet, 0, 0, true},
		{quiet, 0, 0, false},
		{quiet, 10 << 20, 80 << 20, false}, // little, beside what there is
		{quiet, 11 << 20, 80 << 20, true},
		{quiet, 0, 80 << 20, false},
	} {
		cpu += step.used
		now.allocated += step.bytes
		now.live = step.live
		if got := r.due(cpu, now); got != step.want {
			t.Errorf("step %d: due %v, want %v", i, got, step.want)
		}
	}
}

// What nobody has asked a pool for again goes at once, not with the next release.
func TestReleaseFreesWhatIsPooled(t *testing.T) {
	var pool sync.Pool
	freed := make(chan struct{})
	func() {
		block := new([64 << 10]byte)
		runtime.AddCleanup(block, func(freed chan struct{}) { close(freed) }, freed)
		pool.Put(block)
	}()
	release()
	select {
	case <-freed:
	case <-time.After(10 * time.Second):
		t.Error("a block that was pooled is still held")
	}
	runtime.KeepAlive(&pool)
}

func TestReleaseEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); Release(ctx) }()
	cancel()
	<-done
}

func TestFiguresMove(t *testing.T) {
	before := look()
	sink = make([]byte, 1<<20)
	if look().allocated-before.allocated < 1<<20 {
		t.Error("an allocation did not count")
	}
	if cputime.Used() <= 0 {
		t.Error("no processor time used")
	}
}

var sink []byte
