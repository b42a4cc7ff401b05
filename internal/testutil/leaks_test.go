package testutil

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// slow leaves a goroutine behind that takes longer than goleak waits.
type slow chan struct{}

func (s slow) Run() int {
	go func() { <-s }()
	time.AfterFunc(time.Second, func() { close(s) })
	return 0
}

func TestSettled(t *testing.T) {
	if status := Settled(make(slow)).Run(); status != 0 {
		t.Errorf("status %d", status)
	}
	if err := goleak.Find(); err != nil {
		t.Error(err)
	}
}
