package peers

import (
	"testing"
	"time"
)

// However often something fails, its pause stays within the limit.
func TestBackoffWithoutEnd(t *testing.T) {
	for _, base := range []time.Duration{0, 1, time.Second} {
		b := Backoff{Base: base, Limit: time.Minute, Growth: 2}
		for range 2000 {
			if pause := b.Failure(); pause < 0 || pause > b.Limit {
				t.Fatalf("base %v: a pause of %v after %d failures", base, pause, b.fails)
			}
		}
	}
}
