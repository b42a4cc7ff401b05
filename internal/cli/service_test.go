package cli

import (
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
)

// A service is asked to stop as by SIGTERM, once, and its manager hears of it until it has
// ended, however long its connections take.
func TestService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const drains, interrogate, stop = 12 * time.Second, "interrogate", "stop"
		asked := make(chan string)
		told := 0
		status := make(chan int)
		go func() {
			program := func(signals <-chan os.Signal) int {
				testutil.Equal[os.Signal](t, <-signals, syscall.SIGTERM, "the signal")
				time.Sleep(drains)
				testutil.Equal(t, len(signals), 0, "a second signal would cut its connections")
				return 7
			}
			status <- serve(program, asked, func(c string) bool { return c == stop }, func() { told++ })
		}()
		asked <- interrogate
		time.Sleep(time.Hour)
		testutil.Equal(t, told, 0, "while it runs, its manager hears that it stops, times")
		asked <- stop
		asked <- stop // the system ends too
		testutil.Equal(t, <-status, 7, "status")
		testutil.Equal(t, told, 3, "its manager hears that it stops, times")
	})
}

// One that fails by itself ends as a process does.
func TestServiceThatFails(t *testing.T) {
	never := make(chan string)
	testutil.Equal(t, serve(func(<-chan os.Signal) int { return ExitFailure }, never, nil, nil), ExitFailure, "status")
}
