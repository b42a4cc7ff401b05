package link

import (
	"testing"
	"time"
)

// By an agent's --keepalive-time=30s a link is looked at every 30 s and is dead after 40 s: a
// stop of 12 s before it has even pinged does not end it.
func TestShortStopAtLongIntervalEndsNoLink(t *testing.T) {
	start := time.Now()
	l := liveness{interval: 30 * time.Second, deadAfter: 40 * time.Second, looked: start, heard: start.Add(-time.Millisecond)}
	if l.look(start.Add(42*time.Second), 0, false) {
		t.Error("dead, and never asked")
	}
}
