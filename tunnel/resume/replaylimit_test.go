package resume

import (
	"testing"
	"time"
)

func TestRoomGrows(t *testing.T) {
	var r replayLimit
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	ack := func(size int) {
		for acked := 0; acked < size; acked += 64 << 10 {
			r.grow(64<<10, now)
		}
	}
	ack(64 << 20)
	if r.bytes() != minKept {
		t.Errorf("it grew to %d though nobody waited", r.bytes())
	}
	r.want(now)
	now = now.Add(growAfter - 1)
	ack(64 << 20)
	if r.bytes() != minKept {
		t.Errorf("it grew to %d while a socket's buffers filled", r.bytes())
	}
	now = now.Add(1)
	r.grow(1, now)
	trips := 1
	for ; r.bytes() < maxKept; trips++ {
		if trips > 5 {
			t.Fatalf("%d after %d round trips", r.bytes(), trips)
		}
		ack(r.bytes())
	}
	ack(2 * maxKept)
	if r.bytes() != maxKept {
		t.Errorf("it grew beyond its bound to %d", r.bytes())
	}
	now = now.Add(limitLasts)
	r.want(now)
	if r.bytes() != minKept {
		t.Errorf("what is idle has %d", r.bytes())
	}
}
