package uplink

import (
	"testing"
	"time"
)

// An address whose links were asked to go elsewhere is not one that failed, and
// is tried again soon, whatever pause it has earned by short-lived links.
func TestDrainingAddressIsTriedSoon(t *testing.T) {
	now := time.Now()
	p := &place{next: now.Add(maxPause), tried: now.Add(-firstPause / 2)}
	if wait := p.wait(now, false); wait != maxPause {
		t.Errorf("a failing address waits %v, want %v", wait, maxPause)
	}
	if wait := p.wait(now, true); wait != firstPause/2 {
		t.Errorf("a draining one waits %v, want %v", wait, firstPause/2)
	}
	p.next = now
	if wait := p.wait(now, true); wait > 0 {
		t.Errorf("one that is due waits %v", wait)
	}
}
