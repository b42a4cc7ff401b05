//go:build unix

package logging_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
)

func TestLogFileErrors(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	testutil.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for arg, want := range map[string]string{
		"--log-file=" + dir + "/no/x.log": "--log-file: open " + dir + "/no/x.log: no such file",
		"--log-file=" + dir:               "--log-file: open " + dir + ": is a directory",
		"--log-file=" + pipe:              "--log-file: open " + pipe + ": ",
		"--log-dir=" + dir + "/no":        "--log-dir: open " + dir + "/no/x.log: no such file",
	} {
		var f cli.LogFlags
		set := pflag.NewFlagSet("x", pflag.ContinueOnError)
		f.AddTo(set)
		testutil.NoError(t, set.Parse([]string{"--logtostderr=false", arg}))
		if _, err := f.New("x", &output{}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}
