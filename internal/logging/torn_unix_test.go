//go:build unix

package logging

import (
	"bufio"
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A line that a full disk tears ends where it was torn: the next one begins anew. The disk is a
// pipe that nobody reads until its deadline.
func TestTornLinesEnd(t *testing.T) {
	r, f, err := os.Pipe()
	testutil.NoError(t, err)
	defer r.Close()
	w := &file{report: io.Discard, f: f}
	long := []byte(strings.Repeat("x", 1<<20) + "\n")
	write := func() {
		_ = f.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		_, _ = w.Write(long)
	}
	for w.size == 0 { // a busy machine may be past the deadline before the first byte
		write()
	}
	write() // now the disk takes nothing
	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewReader(r); ; {
			line, err := s.ReadString('\n')
			if err != nil {
				return
			}
			lines <- line
		}
	}()
	_ = f.SetWriteDeadline(time.Time{})
	for _, line := range []string{"one\n", "two\n"} {
		_, _ = w.Write([]byte(line))
	}
	testutil.NoError(t, f.Close())
	torn := <-lines
	testutil.Holds(t, bytes.HasPrefix(long, []byte(strings.TrimSuffix(torn, "\n"))),
		"the torn line ends with %q", torn[max(0, len(torn)-8):])
	for _, want := range []string{"one\n", "two\n"} {
		testutil.Equal(t, <-lines, want, "the next line")
	}
}
