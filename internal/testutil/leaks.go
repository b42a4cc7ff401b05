package testutil

import (
	"time"

	"go.uber.org/goleak"
)

// Settled is m for goleak.VerifyTestMain, which waits less than half a second for the
// last goroutines to end: on a busy machine they can take longer.
func Settled(m goleak.TestingM) goleak.TestingM { return settled{m} }

type settled struct{ goleak.TestingM }

// Run runs the tests. If they pass, it waits for at most Patience until no goroutine is
// left.
func (s settled) Run() int {
	status := s.TestingM.Run()
	for start := time.Now(); status == 0 && goleak.Find() != nil && time.Since(start) < Patience; {
	}
	return status
}
