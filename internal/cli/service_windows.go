package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/windows/svc"
	"golang.org/x/sys/windows/svc/eventlog"
)

// asService runs a program if Windows has started it as a service; ok is false if not. Its
// errors go to the event log, by the name of the program.
func asService(run func(stderr io.Writer, signals <-chan os.Signal) int) (status int, ok bool) {
	if is, err := svc.IsWindowsService(); err != nil || !is {
		return 0, false
	}
	name := strings.TrimSuffix(filepath.Base(os.Args[0]), ".exe")
	s := &service{run: func(signals <-chan os.Signal) int {
		log, err := eventlog.Open(name)
		if err != nil {
			return run(os.Stderr, signals)
		}
		defer log.Close()
		return run(events{log}, signals)
	}}
	if err := svc.Run(name, s); err != nil {
		return ExitFailure, true
	}
	return s.status, true
}

// events is an event log as a Writer.
type events struct{ *eventlog.Log }

// Write adds an event.
func (e events) Write(line []byte) (int, error) {
	return len(line), e.Error(1, strings.TrimSpace(string(line)))
}

// service implements svc.Handler.
type service struct {
	run    func(<-chan os.Signal) int
	status int
}

// Execute implements svc.Handler: an exit status that is not 0 counts as a failure, after
// which Windows does what the service's recovery says.
func (s *service) Execute(_ []string, asked <-chan svc.ChangeRequest, told chan<- svc.Status) (specific bool, code uint32) {
	told <- svc.Status{State: svc.Running, Accepts: svc.AcceptStop | svc.AcceptShutdown}
	var checkpoint uint32
	stopping := func() {
		checkpoint++
		told <- svc.Status{State: svc.StopPending, CheckPoint: checkpoint, WaitHint: uint32(4 * tellEvery.Milliseconds())}
	}
	isStop := func(c svc.ChangeRequest) bool {
		if c.Cmd == svc.Interrogate {
			told <- c.CurrentStatus
		}
		return c.Cmd == svc.Stop || c.Cmd == svc.Shutdown
	}
	s.status = serve(s.run, asked, isStop, stopping)
	return s.status != ExitOK, uint32(s.status)
}
