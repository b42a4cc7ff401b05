package tunnel

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A relay stands still once every look within its bound has found it so. A stop of the process,
// however long, is one of these looks: what came meanwhile is carried before the next.
func TestRelaysOutliveAStoppedProcess(t *testing.T) {
	for name, c := range map[string]struct {
		stopped time.Duration // before the first look
		moves   bool          // behind it
		want    int           // looks until it stands still; the second sees the move
	}{
		"never stopped":      {0, false, stillLooks},
		"stopped":            {5 * time.Hour, false, stillLooks},
		"stopped, and moves": {5 * time.Hour, true, stillLooks + 2},
	} {
		f := NewFlow("tcp", "a:1")
		w := &watchdog{relay: &Relay{Flow: f}}
		w.limit(time.Hour)
		now, looks := time.Now().Add(c.stopped), 0
		for still := false; !still && looks <= 2*stillLooks; looks++ {
			now = now.Add(time.Hour / stillLooks)
			if still, _ = w.due(now); c.moves && looks == 0 {
				f.sent[1].Add(1)
			}
		}
		w.stop()
		testutil.Equal(t, looks, c.want, "%s: looks until it stands still", name)
	}
}
