package testutil

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"
)

// Output keeps what is written to it. Its methods may be called from any goroutine.
type Output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

// String returns all that is kept.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

// Take is String, and forgets it.
func (o *Output) Take() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	defer o.buf.Reset()
	return o.buf.String()
}

// Lines counts the lines of a log that have a text in their message or fields, of all levels or of
// these.
func Lines(log *test.Hook, text string, levels ...logrus.Level) (n int) {
	for _, e := range log.AllEntries() {
		if strings.Contains(fmt.Sprint(e.Message, e.Data), text) &&
			(len(levels) == 0 || slices.Contains(levels, e.Level)) {
			n++
		}
	}
	return n
}
