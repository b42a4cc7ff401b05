//go:build !windows

package cli_test

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"testing"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

func TestMainHandlesSignals(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	os.Args = []string{"prog"}
	for _, sent := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		if signal.Ignored(sent) {
			continue // nohup runs the test
		}
		status := cli.Main(program(func(ctx context.Context) error {
			if err := syscall.Kill(os.Getpid(), sent); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		}))
		testutil.Equal(t, status, 0, "%v: status", sent)
	}
}

// What nohup has ignored stays so.
func TestMainKeepsIgnoredSIGHUP(t *testing.T) {
	signal.Ignore(syscall.SIGHUP)
	defer func() { // Reset would leave it ignored, as far as Ignored knows
		heard := make(chan os.Signal, 1)
		signal.Notify(heard, syscall.SIGHUP)
		signal.Stop(heard)
	}()
	args := os.Args
	defer func() { os.Args = args }()
	os.Args = []string{"prog"}
	_ = cli.Main(program(func(context.Context) error {
		testutil.Holds(t, signal.Ignored(syscall.SIGHUP), "it is not ignored any more")
		return nil
	}))
}
