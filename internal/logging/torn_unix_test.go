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
	if err != nil {
		t.Fatal(err)
	}
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
	if !bytes.HasPrefix(long, []byte(strings.TrimSuffix(torn, "\n"))) {
		t.Errorf("the torn line ends with %q", torn[len(torn)-8:])
	}
	for _, want := range []string{"one\n", "two\n"} {
		if got := <-lines; got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
