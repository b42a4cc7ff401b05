package cli

import (
	"os"
	"syscall"
	"time"
)

// tellEvery is how often the manager hears that a service still stops, which may take as long
// as its connections.
const tellEvery = 5 * time.Second

// serve runs a program as a service. asked has the manager's requests, and isStop answers
// them. The first to stop is a SIGTERM; more change nothing, since a manager sends one for
// itself and one for the system's end. From then on, stopping tells the manager that the
// service stops. It returns the program's exit status.
func serve[C any](run func(<-chan os.Signal) int, asked <-chan C, isStop func(C) bool, stopping func()) int {
	signals, done := make(chan os.Signal, 1), make(chan int, 1)
	go func() { done <- run(signals) }()
	var tick <-chan time.Time
	for {
		select {
		case status := <-done:
			return status
		case c := <-asked:
			if isStop(c) && tick == nil {
				tick = time.Tick(tellEvery)
				stopping()
				signals <- syscall.SIGTERM
			}
		case <-tick:
			stopping()
		}
	}
}
