//go:build !windows

package cli_test

import (
	"context"
	"os"
	"syscall"
	"testing"

	"konnectivity/internal/cli"
)

func TestMainHearsRealSignals(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	os.Args = []string{"prog"}
	status := cli.Main(program(func(ctx context.Context) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		<-ctx.Done()
		return nil
	}))
	if status != 0 {
		t.Errorf("status %d", status)
	}
}
