package cli

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A service is asked to stop as by SIGTERM, once, and its manager hears of it until it has
// ended, however long its connections take.
func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const drains, interrogate, stop = 12 * time.Second, "interrogate", "stop"
		asked := make(chan string)
		var told []phase
		status := make(chan int)
		go func() {
			program := func(signals <-chan os.Signal) int {
				if got := <-signals; got != syscall.SIGTERM {
					t.Errorf("the signal is %v", got)
				}
				time.Sleep(drains)
				if len(signals) > 0 {
					t.Error("a second signal would cut its connections")
				}
				return 7
			}
			status <- serve(program, asked, func(c string) bool { return c == stop }, func(p phase) { told = append(told, p) })
		}()
		asked <- interrogate
		time.Sleep(time.Hour)
		if !slices.Equal(told, []phase{running}) {
			t.Errorf("while it runs, its manager hears %v", told)
		}
		asked <- stop
		asked <- stop // the system ends too
		if got := <-status; got != 7 {
			t.Errorf("status %d", got)
		}
		if !slices.Equal(told, []phase{running, stopping, stopping, stopping}) {
			t.Errorf("its manager hears %v", told)
		}
	})
}

// One that fails by itself ends as a process does.
func TestServiceThatFails(t *testing.T) {
	never := make(chan string)
	if got := serve(func(<-chan os.Signal) int { return ExitFailure }, never, nil, func(phase) {}); got != ExitFailure {
		t.Errorf("status %d", got)
	}
}
