package cli

import (
	"log"
	"math"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/sirupsen/logrus/hooks/test"

	"konnectivity/internal/testutil"
)

func TestLogLimits(t *testing.T) {
	before := debug.SetMemoryLimit(1 << 30)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	log, hook := test.NewNullLogger()
	logLimits(log)
	testutil.Equal(t, len(hook.Entries), 0, "told although debug logs are off")
	log.SetLevel(logrus.DebugLevel)
	logLimits(log)
	want := logrus.Fields{"memory_limit_bytes": int64(1 << 30), "processors": runtime.GOMAXPROCS(0)}
	if got := hook.LastEntry(); got == nil || got.Data["memory_limit_bytes"] != want["memory_limit_bytes"] || got.Data["processors"] != want["processors"] {
		t.Errorf("told %+v, want %v", got, want)
	}
	debug.SetMemoryLimit(math.MaxInt64)
	logLimits(log)
	testutil.Equal[any](t, hook.LastEntry().Data["memory_limit_bytes"], int64(0), "the limit that is told where there is none")
}

// What net/http says by the standard library's log is a line of the program's own.
func TestStandardLogIsJoined(t *testing.T) {
	own, hook := test.NewNullLogger()
	writer, flags := log.Writer(), log.Flags()
	testutil.NoError(t, joinLogs(own.WithField("component", "c"), 0, ""))
	log.Print("odd")
	log.SetOutput(writer)
	log.SetFlags(flags)
	signal.Reset(syscall.SIGPIPE)
	got := hook.LastEntry()
	testutil.Holds(t, got != nil && got.Message == "odd" && got.Level == logrus.WarnLevel && got.Data["component"] == "c", "%+v", got)
}
