package server

import (
	"testing"
	"time"
)

// A pod is killed 30 s after it was asked to end, unless its manifest says
// otherwise. A drain that lasts as long as it may, and what follows, is over then.
func TestDefaultDrainFitsAPod(t *testing.T) {
	if DefaultGrace > 25*time.Second {
		t.Errorf("it lasts %v", DefaultGrace)
	}
}
