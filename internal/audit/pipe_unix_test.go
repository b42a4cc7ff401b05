//go:build unix

package audit

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"konnectivity/internal/testutil"
)

// A pipe without a reader is refused at the start, and waited for later.
func TestPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	testutil.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err := Open(Options{Path: path})
	testutil.Requires(t, err != nil, "nobody reads")
	testutil.Equal(t, err.Error(), "--audit-log: "+path+" is a pipe that no program reads: start its reader first", "the error")
	open1 := func() *os.File { return testutil.Must(os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0))(t) }
	reader := open1()
	l, said := openLog(t, path)
	stop := run(t, l)
	open(l, 0, 1)
	line := testutil.Must(bufio.NewReader(reader).ReadString('\n'))(t)
	testutil.NoError(t, reader.Close())
	open(l, 1, 1)
	testutil.Eventually(t, "a line", func() bool { return strings.Contains(said.String(), "cannot be written") })
	reader = open1()
	defer reader.Close()
	line += testutil.Must(bufio.NewReader(reader).ReadString('\n'))(t)
	stop()
	for i := range 2 {
		testutil.Contains(t, line, fmt.Sprintf(`"id":"%d"`, i), "%d is missing in", i)
	}
}

// A reader that is too slow loses whole records, and is told how many. It holds up
// neither connections nor the end of the process.
func TestSlowReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	testutil.NoError(t, syscall.Mkfifo(path, 0o600))
	reader := testutil.Opened(os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0))(t)
	l, _ := openLog(t, path)
	stop := run(t, l)
	n := 0
	for ; l.queue.lost() == 0; n++ {
		open(l, n, 1)
	}
	lines := bufio.NewReaderSize(reader, chunkSize)
	for i := 0; ; i++ {
		line := testutil.Must(lines.ReadString('\n'))(t)
		if strings.Contains(line, `"event":"dropped"`) {
			testutil.Holds(t, i >= n-int(l.queue.lost()) && strings.Contains(line, fmt.Sprintf(`"dropped":%d}`, l.queue.lost())),
				"after %d of %d records: %s", i, n, line)
			break
		}
		testutil.Requires(t, strings.Contains(line, fmt.Sprintf(`"id":"%d"`, i)), "record %d is %s", i, line)
	}
	for range 2 {
		open(l, 0, 1000) // more than the pipe holds
	}
	stop()
}

// A reader of standard output that stops is noticed, though a write to it hangs.
func TestStandardOutputHangs(t *testing.T) {
	var pipe [2]int
	testutil.NoError(t, syscall.Pipe(pipe[:]))
	reader, before := os.NewFile(uintptr(pipe[0]), "reader"), stdout
	stdout = os.NewFile(uintptr(pipe[1]), "stdout")
	defer func() { _, stdout = stdout.Close(), before }()
	defer reader.Close()
	l, said := openLog(t, Stdout)
	stop := run(t, l)
	open(l, 0, 1000) // more than the pipe holds
	testutil.Eventually(t, "a line", func() bool { return strings.Contains(said.String(), "cannot be written") })
	lines := bufio.NewScanner(reader)
	for range 1000 {
		testutil.Requires(t, lines.Scan(), "the pipe has ended: %v", lines.Err())
	}
	testutil.Eventually(t, "a line", func() bool { return strings.Contains(said.String(), "written again") })
	stop()
}
