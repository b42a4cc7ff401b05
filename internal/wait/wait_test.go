package wait

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

func TestWaitsEndWithTheirContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
		defer cancel()
		testutil.Equal(t, func() time.Duration { For(ctx, time.Second); return time.Since(start) }(), time.Second,
			"a wait of a second took")
		calls := 0
		Every(ctx, time.Second, func() { calls++ })
		took := time.Since(start)
		testutil.Holds(t, calls == 2 && took == 3500*time.Millisecond, "%d calls in %v", calls, took)
		testutil.Holds(t, !For(ctx, time.Second) && time.Since(start) == 3500*time.Millisecond, "it waited after the end")
	})
}

func TestSignalsAreOneAndDoNotBlock(t *testing.T) {
	c := make(chan struct{}, 1)
	Signal(c)
	Signal(c)
	if <-c; len(c) > 0 {
		t.Error("two signals are two")
	}
}

func TestGoTellsTheEnd(t *testing.T) {
	release, returned := make(chan struct{}), false
	done := Go(func() { <-release; returned = true })
	select {
	case <-done:
		t.Error("it is done before it has returned")
	default:
	}
	close(release)
	if <-done; !returned {
		t.Error("it is done before it has returned")
	}
}

func TestAwake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, did := time.Now(), make(chan time.Duration, 2)
		do := func() { did <- time.Since(start) }
		stop := Awake(10*time.Second, do)
		time.Sleep(9 * time.Second)
		stop()
		defer Awake(2*time.Second, do)()
		testutil.Equal(t, <-did, 11*time.Second, "what was not stopped is done after")
	})
}
