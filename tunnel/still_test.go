package tunnel

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A relay stands still if nothing has passed within its bound. The time in which the process was
// stopped is not counted: bytes that arrived in it are carried before the next look.
func TestRelaysOutliveAStoppedProcess(t *testing.T) {
	for name, c := range map[string]struct {
		late  time.Duration // of the first look
		moves bool          // behind it
		want  int           // looks until it stands still; the next one sees the move
	}{
		"never stopped":      {0, false, 1},
		"busy":               {StopTime, false, 1},
		"stopped":            {5 * time.Hour, false, 2},
		"stopped for little": {StopTime + time.Millisecond, false, 2},
		"stopped, and moves": {5 * time.Hour, true, 3},
	} {
		f := NewFlow("tcp", "a:1")
		w := &watchdog{relay: &Relay{Flow: f}}
		w.limit(time.Hour)
		looks := 0
		for still, late := false, c.late; !still && looks < 5; late = 0 {
			still, _ = w.due(w.check.Add(late))
			if looks++; c.moves && looks == 1 {
				f.sent[1].Add(1)
			}
		}
		w.stop()
		testutil.Equal(t, looks, c.want, "%s: looks until it stands still", name)
	}
}
