package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/testutil"
	"konnectivity/internal/wait"
	"konnectivity/tunnel"
)

// openLog opens a Log, and returns what it logs.
func openLog(t testing.TB, path string) (*Log, *testutil.Output) {
	t.Helper()
	said := new(testutil.Output)
	logger := logrus.New()
	logger.SetOutput(said)
	l := testutil.Must(Open(Options{Path: path, Component: "konnectivity-agent", Name: "a", Log: logger, Registerer: prometheus.NewPedanticRegistry()}))(t)
	t.Cleanup(l.Close)
	return l, said
}

// run runs it. stop ends that, and may be called again. In fake time, which stands still while
// a file is written, the rest is written on a busy machine, too.
func run(t testing.TB, l *Log) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := wait.Go(func() { l.Run(ctx) })
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// open has l record n openings, with ids from first on.
func open(l *Log, first, n int) {
	for i := range n {
		f := newFlow()
		f.ID = fmt.Sprint(first + i)
		l.Opened(f)
	}
}

// read returns the ids in a file, in order, and "-N" for N that were dropped. A record
// that is no JSON fails the test.
func read(t testing.TB, path string) (ids []string) {
	t.Helper()
	data := testutil.Must(os.ReadFile(path))(t)
	for l := range bytes.Lines(data) {
		var r struct {
			Event, ID string
			Dropped   int
		}
		err := json.Unmarshal(l, &r)
		testutil.Requires(t, err == nil, "%v: %q", err, l)
		if r.Event == dropped {
			r.ID = fmt.Sprint(-r.Dropped)
		}
		ids = append(ids, r.ID)
	}
	return ids
}

func has(path, text string) bool {
	data, _ := os.ReadFile(path)
	return bytes.Contains(data, []byte(text))
}

// wantIDs wants the numbers from first on.
func wantIDs(t testing.TB, ids []string, first, n int) {
	t.Helper()
	testutil.Requires(t, len(ids) == n, "%d records, want %d", len(ids), n)
	for i, id := range ids {
		testutil.Requires(t, id == fmt.Sprint(first+i), "record %d has the id %s", i, id)
	}
}

func TestFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.log")
		testutil.NoError(t, os.WriteFile(path, []byte(`{"audit":1,"id":"before"}`+"\n"+`{"audit":1,"id":"to`), 0o600)) // of a process that was killed
		l, said := openLog(t, path)
		stop := run(t, l)
		open(l, 0, 5000)
		testutil.Eventually(t, "records without a stop", func() bool { return has(path, `"id":"4999"`) })
		open(l, 5000, 10)
		stop()
		data := testutil.Must(os.ReadFile(path))(t)
		whole := bytes.SplitAfterN(data, []byte("\n"), 3)
		testutil.NoError(t, os.WriteFile(path, whole[2], 0o600))
		wantIDs(t, read(t, path), 0, 5010)
		testutil.Equal(t, said.String(), "", "the log says")
	})
}

func TestFileMode(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	openLog(t, path)
	testutil.Equal(t, testutil.Must(os.Stat(path))(t).Mode().Perm()&0o137, 0, "mode")
}

func TestOpenFails(t *testing.T) {
	for _, path := range []string{t.TempDir(), filepath.Join(t.TempDir(), "none", "audit.log")} {
		_, err := Open(Options{Path: path})
		testutil.Holds(t, err != nil && strings.HasPrefix(err.Error(), "--audit-log: open "+path+": "), "%v", err)
	}
}

// A file that was renamed or removed gets no more records; the next one has its path.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path, old := filepath.Join(dir, "audit.log"), filepath.Join(dir, "audit.log.1")
		l, said := openLog(t, path)
		stop := run(t, l)
		open(l, 0, 100)
		testutil.Eventually(t, "the first records", func() bool { return has(path, `"id":"99"`) })
		testutil.NoError(t, os.Rename(path, old))
		open(l, 100, 100)
		testutil.Eventually(t, "records in a new file", func() bool { return has(path, `"id":"199"`) })
		testutil.NoError(t, os.Remove(path))
		open(l, 200, 100)
		stop()
		wantIDs(t, read(t, old), 0, 100)
		wantIDs(t, read(t, path), 200, 100)
		testutil.Equal(t, said.String(), "", "the log says")
	})
}

// Records wait while the folder is gone, and one line says so.
func TestFolderRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "log")
		testutil.NoError(t, os.Mkdir(dir, 0o700))
		path := filepath.Join(dir, "audit.log")
		l, said := openLog(t, path)
		testutil.NoError(t, os.RemoveAll(dir))
		stop := run(t, l)
		open(l, 0, 1000)
		testutil.Eventually(t, "a line", func() bool { return strings.Contains(said.String(), "cannot be written") })
		testutil.Holds(t, l.Trouble() != "", "metric and status page do not tell")
		testutil.NoError(t, os.Mkdir(dir, 0o700))
		testutil.Eventually(t, "records", func() bool { return has(path, `"id":"999"`) })
		testutil.Eventually(t, "another line", func() bool { return strings.Contains(said.String(), "written again") })
		stop()
		wantIDs(t, read(t, path), 0, 1000)
		testutil.Holds(t, strings.Count(said.String(), "\n") == 2 && l.Trouble() == "", "%v", said)
	})
}

// What the queue has no room for while nothing can be written is counted, and the count
// stands where the records would. Nobody waits.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		path, next := filepath.Join(dir, "audit.log"), filepath.Join(dir, "next")
		if os.Symlink("/dev/full", path) != nil || !exists("/dev/full") {
			t.Skip("needs /dev/full")
		}
		l, said := openLog(t, path)
		stop := run(t, l)
		open(l, 0, 1)
		testutil.Eventually(t, "a write that fails", func() bool { return l.Trouble() != "" })
		n := 1
		for ; l.queue.lost() < 1000; n++ { // at no time does it block
			open(l, n, 1)
		}
		testutil.NoError(t, os.Symlink(next, path+".new"))
		testutil.NoError(t, os.Rename(path+".new", path))
		missed := fmt.Sprintf(`"dropped":%d}`, l.queue.lost())
		testutil.Eventually(t, "the count", func() bool { return has(next, missed) })
		open(l, n, 1)
		stop()
		ids := read(t, next)
		kept := n - int(l.queue.lost())
		wantIDs(t, ids[:kept], 0, kept)
		rest := ids[kept:]
		testutil.Holds(t, len(rest) == 2 && rest[0] == fmt.Sprint(-l.queue.lost()) && rest[1] == fmt.Sprint(n), "then %v", rest)
		testutil.Equal(t, strings.Count(said.String(), "\n"), 2, "lines of the log %s", said)
		testutil.Equal(t, l.written.Load(), int64(len(ids)), "records that count as written")
	})
}

func exists(path string) bool { _, err := os.Stat(path); return err == nil }

// A process ends within a bound, wherever its records go.
func TestStopWhileFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		if !exists("/dev/full") {
			t.Skip("needs /dev/full")
		}
		l, said := openLog(t, "/dev/full")
		stop := run(t, l)
		open(l, 0, 3)
		stop()
		testutil.Holds(t, strings.Contains(said.String(), "some audit records were not written") && l.queue.lost() == 3,
			"%d lost: %s", l.queue.lost(), said)
	})
}

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewPedanticRegistry()
		path := filepath.Join(t.TempDir(), "audit.log")
		l := testutil.Must(Open(Options{Path: path, Registerer: registry}))(t)
		stop := run(t, l)
		open(l, 0, 3)
		lost := carrier(1, 0)
		l.Opened(lost)
		l.Closed(lost, 0, tunnel.Lost(tunnel.LossCut)) // what waits for another carrier ends with the process
		stop()
		l.queue.miss(2)
		const want = `# HELP konnectivity_audit_failing 1 while audit records cannot be written, 0 otherwise.
# TYPE konnectivity_audit_failing gauge
konnectivity_audit_failing 0
# HELP konnectivity_audit_records_total Audit records, by whether they were written.
# TYPE konnectivity_audit_records_total counter
konnectivity_audit_records_total{result="dropped"} 2
konnectivity_audit_records_total{result="written"} 5
`
		testutil.Succeeds(t, promtest.GatherAndCompare(registry, strings.NewReader(want)), "metrics")
		testutil.Equal(t, len(testutil.Must(promtest.GatherAndLint(registry))(t)), 0, "problems of metrics")
		testutil.DocumentedLabels(t, "../../docs/metrics.md", "Audit log").Check(t, "", testutil.Must(registry.Gather())(t))
	})
}

// Dials have a record only if they fail.
func TestDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "audit.log")
		l, _ := openLog(t, path)
		stop := run(t, l)
		f := newFlow()
		l.Dialed(f, 0, nil)
		l.Dialed(f, 0, context.DeadlineExceeded)
		l.Unanswered(f, 0, context.Canceled)
		again := newFlow()
		again.Resume = &tunnel.Resume{Epoch: 1}
		l.Dialed(again, 0, context.DeadlineExceeded)
		l.Unanswered(again, 0, context.Canceled)
		stop()
		data := testutil.Must(os.ReadFile(path))(t)
		testutil.Holds(t, bytes.Count(data, []byte("\n")) == 2 && has(path, `"failure":"timeout"`) &&
			has(path, `"failure":"cancelled"`), "%s", data)
	})
}

// Bounds are what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/audit.md"
	testutil.Says(t, page, "a record is put into a queue of %v MiB", queueMax>>20)
	testutil.Says(t, page, "Records are written at most %v ms late", batchTime.Milliseconds())
	testutil.Says(t, page, "takes at most %v s to write the rest", int64(flushTime/time.Second))
	testutil.Says(t, page, "`--resume-window` and %v s are over", int64(noticeTime/time.Second))
	testutil.Says(t, page, "Beyond %v such connections it does not wait", maxWaiting)
	testutil.Says(t, page, "A text has at most %v bytes", maxText)
}
