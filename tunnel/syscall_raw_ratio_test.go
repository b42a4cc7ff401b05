//go:build linux && !race && !msan && !asan

package tunnel

import (
	"bytes"
	"runtime/trace"
	"syscall"
	"testing"

	"konnectivity/internal/testutil"
)

// The scheduler is told of few calls. An execution trace has events for each that it is
// told of, and is larger by these.
func TestMostCallsAreRaw(t *testing.T) {
	_, full := rawPair(t)
	for err := error(nil); err == nil; {
		_, err = RawWrite(full, make([]byte, 1<<20))
	}
	one := []byte{1}
	g := new(gather)
	g.fill([]Chunk{CopyChunk(one)})

	told := traced(t, func() { _, _ = syscall.Write(int(full), one) })
	for name, call := range map[string]func(){
		"read":   func() { _, _ = RawRead(full, one) },
		"write":  func() { _, _ = RawWrite(full, one) },
		"writev": func() { g.writeOn(full) },
	} {
		size := traced(t, call)
		for range 20 { // what else the program does adds events, and never takes any away
			size = min(size, traced(t, call))
		}
		testutil.AtMost(t, size, told/4, "%s: bytes of the trace", name)
	}
}

// traced is how large a trace of 20,000 calls is.
func traced(t *testing.T, call func()) int {
	t.Helper()
	var events bytes.Buffer
	if err := trace.Start(&events); err != nil {
		t.Skip(err) // the test itself is being traced
	}
	for range 20000 {
		call()
	}
	trace.Stop()
	return events.Len()
}
