//go:build unix

package logging_test

import (
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"konnectivity/internal/logging"
)

func TestLogFilesThatCannotBeOpened(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for arg, want := range map[string]string{
		"--log-file=" + dir + "/no/x.log": "--log-file: open " + dir + "/no/x.log: no such file",
		"--log-file=" + dir:               "--log-file: open " + dir + ": is a directory",
		"--log-file=" + pipe:              "--log-file: open " + pipe + ": ",
		"--log-dir=" + dir + "/no":        "--log-dir: open " + dir + "/no/x.log: no such file",
	} {
		var f logging.Flags
		set := pflag.NewFlagSet("x", pflag.ContinueOnError)
		f.AddTo(set)
		if err := set.Parse([]string{"--logtostderr=false", arg}); err != nil {
			t.Fatal(err)
		}
		if _, err := f.New("x", &output{}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", arg, err, want)
		}
	}
}
