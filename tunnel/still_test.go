package tunnel

import (
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A relay stands still once every look within its bound has found it so. A look after a stop of the
// process, however long, is none of these: what came meanwhile is carried before the next.
func TestRelaysOutliveAStoppedProcess(t *testing.T) {
	for name, c := range map[string]struct {
		stopped int  // before this look, from 1 on; 0: never
		moves   bool // behind it
		want    int  // looks until it stands still; the next one sees the move
	}{
		"never stopped":              {0, false, stillLooks},
		"stopped at first":           {1, false, stillLooks + 1},
		"stopped, and moves":         {1, true, stillLooks + 2},
		"stopped at last":            {stillLooks, false, stillLooks + 1},
		"stopped at last, and moves": {stillLooks, true, 2*stillLooks + 1},
	} {
		f := NewFlow("tcp", "a:1")
		w := &watchdog{relay: &Relay{Flow: f}}
		w.limit(time.Hour)
		now, looks := time.Now(), 0
		for still := false; !still && looks <= 3*stillLooks; {
			now = now.Add(time.Hour / stillLooks)
			if looks++; looks == c.stopped {
				now = now.Add(5 * time.Hour)
			}
			if still, _ = w.due(now); c.moves && looks == c.stopped {
				f.sent[1].Add(1)
			}
		}
		w.stop()
		testutil.Equal(t, looks, c.want, "%s: looks until it stands still", name)
	}
}
