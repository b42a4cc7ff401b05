package agent

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// Each cause is told once, also where two alternate, and again after it was away
// for long.
func TestEachCauseOfFailureIsLogged(t *testing.T) {
	const address = "10.0.0.1:8091"
	w := newWorld()
	inWorld(t, w, []string{address}, nil, func(b *bench) {
		told := func(after time.Duration, want int, last string) {
			t.Helper()
			time.Sleep(after)
			all := b.log.since(0)
			testutil.Requires(t, len(all) == want, "%d log lines, want %d: %v", len(all), want, all)
			testutil.Contains(t, all[len(all)-1], last, "the last line")
		}
		told(time.Minute, 1, "nobody there")
		w.balance(address, "a") // which is down
		told(time.Minute, 2, "refused")
		for range 10 {
			w.balance(address)
			told(time.Minute, 2, "refused")
			w.balance(address, "a")
			told(time.Minute, 2, "refused")
		}
		told(2*causeTime, 2, "refused")
		w.balance(address)
		told(time.Minute, 3, "nobody there")
		w.start("a")
		w.balance(address, "a")
		told(time.Minute, 4, "connected")
		w.stop("a")
		told(time.Minute, 6, "refused") // the loss, and that it is not back
	})
}

// What changes from attempt to attempt is no other cause, and a server that gives a
// reason of its own each time is logged a few times.
func TestCausesAreBounded(t *testing.T) {
	c, now, told := make(causes), time.Now(), 0
	note := func(address, text string) {
		if c.news(address, fmt.Errorf("%s", text), false, now) {
			told++
		}
		now = now.Add(time.Second)
	}
	for i := range 100 {
		note("a", fmt.Sprintf("read tcp 10.0.0.1:%d->10.0.0.2:8091: connection reset by peer", 40000+i))
		note("a", "certificate has expired: current time is "+now.UTC().Format(time.RFC3339))
	}
	testutil.Equal(t, told, 2, "how often the two causes were told")
	for i := range 100 {
		note("b", strings.Repeat("x", i))
	}
	testutil.Holds(t, told == 2+maxCauses && len(c["b"]) == maxCauses,
		"%d of a hundred were told, and %d are kept", told-2, len(c["b"]))
	now = now.Add(causeTime)
	c.forget(now)
	testutil.Equal(t, len(c), 0, "addresses are kept")
}
