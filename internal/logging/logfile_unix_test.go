//go:build unix

package logging_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
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
		f := testutil.Must(logFlags("--logtostderr=false", arg))(t)
		_, err := f.New("x", &output{})
		testutil.Holds(t, err != nil && strings.HasPrefix(err.Error(), want), "%s: %v, want %q", arg, err, want)
	}
}

// What is no file, such as /dev/stdout of a container, cannot be started anew.
func TestPipesHaveNoSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	testutil.NoError(t, syscall.Mkfifo(path, 0o600))
	pipe := testutil.Opened(os.OpenFile(path, os.O_RDWR, 0))(t)
	out := &output{}
	log := testutil.Must(logging.New(logging.Options{Level: logrus.InfoLevel, File: path, FileMaxBytes: 1000, Out: out, OutLevel: logrus.ErrorLevel}))(t)
	lines := bufio.NewScanner(pipe)
	for i := range 100 {
		log.Infof("line %d", i)
		text := out.Take()
		testutil.Requires(t, text == "", "line %d: %s", i, text)
		if lines.Scan(); !strings.Contains(lines.Text(), fmt.Sprintf("line %d", i)) {
			t.Fatalf("line %d is %s", i, lines.Text())
		}
	}
}
