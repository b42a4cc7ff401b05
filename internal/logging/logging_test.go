package logging_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"go.uber.org/goleak"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"

	"konnectivity/internal/cli"
	"konnectivity/internal/logging"
	"konnectivity/internal/testutil"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// output is a log.
type output struct{ testutil.Output }

// lines parses and removes the written lines, each a JSON object.
func (o *output) lines(t *testing.T) []map[string]any {
	t.Helper()
	return parse(t, []byte(o.Take()))
}

func parse(t *testing.T, data []byte) []map[string]any {
	t.Helper()
	var all []map[string]any
	for line := range bytes.Lines(data) {
		var one map[string]any
		testutil.Requires(t, json.Unmarshal(line, &one) == nil, "not JSON: %q", line)
		all = append(all, one)
	}
	return all
}

// logFlags parses a program's arguments.
func logFlags(args ...string) (*cli.LogFlags, error) {
	f, set := new(cli.LogFlags), pflag.NewFlagSet("x", pflag.ContinueOnError)
	f.AddTo(set)
	return f, set.Parse(args)
}

// parseFlags makes a program's logger from its arguments.
func parseFlags(t *testing.T, args ...string) (*logrus.Entry, *output) {
	t.Helper()
	f := testutil.Must(logFlags(args...))(t)
	out := &output{}
	log := testutil.Must(f.New("x", out))(t)
	return log, out
}

func TestLevels(t *testing.T) {
	for _, c := range []struct {
		args []string
		want logrus.Level
	}{
		{nil, logrus.InfoLevel},
		{[]string{"--v=0"}, logrus.InfoLevel},
		{[]string{"-v=4"}, logrus.InfoLevel},
		{[]string{"-v", "5"}, logrus.DebugLevel},
		{[]string{"--v=9"}, logrus.TraceLevel},
		{[]string{"--log-level=error"}, logrus.ErrorLevel},
		{[]string{"--log-level=debug", "-v=0"}, logrus.DebugLevel},
	} {
		if log, _ := parseFlags(t, c.args...); log.Logger.GetLevel() != c.want {
			t.Errorf("%v: %v, want %v", c.args, log.Logger.GetLevel(), c.want)
		}
	}
}

func TestLibrariesLogIntoOneStream(t *testing.T) {
	log, out := parseFlags(t, "-v=5")
	out.Take() // the limits of the process
	for _, c := range []struct {
		name, level, msg, library string
		write                     func()
	}{
		{"logrus", "info", "one", "", func() { log.Info("one") }},
		{"klog", "info", "two", "klog", func() { klog.Info("two") }},
		{"klog warning", "info", "three", "klog", func() { klog.Warningf("%s", "three") }},
		{"klog error", "error", "four", "klog", func() { klog.ErrorS(errors.New("why"), "four", "key", "value") }},
		{"klog detail", "debug", "five", "klog", func() { klog.V(5).Info("five") }},
		{"grpc", "debug", "six", "grpc", func() { grpclog.Info("six") }},
		{"grpc warning", "debug", "seven", "grpc", func() { grpclog.Warningln("seven") }},
		{"grpc error", "warning", "eight", "grpc", func() { grpclog.Errorf("%s", "eight") }},
		{"log", "warning", "nine", "", func() { stdlog.Print("nine") }},
	} {
		c.write()
		lines := out.lines(t)
		if len(lines) != 1 {
			t.Errorf("%s: %d lines", c.name, len(lines))
			continue
		}
		l := lines[0]
		library, _ := l["library"].(string)
		testutil.Holds(t, l["level"] == c.level && l["msg"] == c.msg && library == c.library && l["component"] == "x" &&
			l["time"] != nil, "%s: %v", c.name, l)
	}
}

func TestLibrariesAreQuietByDefault(t *testing.T) {
	_, out := parseFlags(t)
	grpclog.Info("chatter")
	grpclog.Warning("chatter")
	klog.V(1).Info("chatter")
	klog.V(4).InfoS("chatter")
	testutil.Holds(t, !grpclog.V(2) && !klog.V(1).Enabled(), "libraries make messages that nobody wants")
	testutil.Equal(t, len(out.lines(t)), 0, "lines")
}

func TestVmoduleSelectsSourceFiles(t *testing.T) {
	_, out := parseFlags(t, "--vmodule=logging_test=3")
	klog.V(3).Info("wanted")
	klog.V(4).Info("not wanted")
	lines := out.lines(t)
	testutil.Holds(t, len(lines) == 1 && lines[0]["msg"] == "wanted", "%v", lines)
	parseFlags(t) // and it is gone with the next logger
	testutil.Holds(t, !klog.V(3).Enabled(), "--vmodule outlives its logger")
}

func TestIneffectiveKlogFlags(t *testing.T) {
	_, out := parseFlags(t, "--add-dir-header", "--skip-headers=true", "--skip-log-headers", "--one-output",
		"--log-backtrace-at=file.go:10", "--log-file-max-size=0", "--stderrthreshold=2", "--alsologtostderr",
		"--logtostderr=true", "--log-dir=/nowhere")
	lines := out.lines(t)
	testutil.Requires(t, len(lines) == 1, "%d lines, want one about flags without effect", len(lines))
	msg := lines[0]["msg"].(string)
	for _, flag := range []string{"add-dir-header", "skip-headers", "skip-log-headers", "one-output", "log-backtrace-at", "log-dir", "alsologtostderr"} {
		testutil.Contains(t, msg, "--"+flag, "the message")
	}
	testutil.Holds(t, !strings.Contains(msg, "max-size") && !strings.Contains(msg, "stderrthreshold"),
		"%q names flags that do act", msg)
}

func TestInvalidValuesAreRefused(t *testing.T) {
	for _, arg := range []string{
		"--log-level=loud", "--log-level=panic", "--log-format=xml", "--v=much", "--vmodule=x", "--vmodule==3",
		"--stderrthreshold=4", "--alsologtostderrthreshold=x", "--log-file-max-size=-1",
	} {
		name, _, _ := strings.Cut(arg, "=")
		testutil.ErrorSays(t, testutil.Err(logFlags(arg)), name, "%s", arg)
	}
}

func TestLogFileAndStandardError(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x.log")
	write := func(args ...string) (stderr, file []map[string]any) {
		t.Helper()
		_ = os.Remove(path)
		log, out := parseFlags(t, append([]string{"--logtostderr=false", "--log-dir=" + dir}, args...)...)
		log.Info("i")
		log.Warn("w")
		log.Error("e")
		data := testutil.Must(os.ReadFile(path))(t)
		return out.lines(t), parse(t, data)
	}
	for _, c := range []struct {
		args []string
		want int
	}{
		{nil, 1}, // errors, as klog does by default
		{[]string{"--stderrthreshold=WARNING"}, 2},
		{[]string{"--stderrthreshold=3"}, 0},
		{[]string{"--alsologtostderr"}, 3},
		{[]string{"--alsologtostderr", "--alsologtostderrthreshold=1"}, 2},
	} {
		if stderr, file := write(c.args...); len(stderr) != c.want || len(file) != 3 {
			t.Errorf("%v: %d lines on standard error, want %d; %d in the file, want 3", c.args, len(stderr), c.want, len(file))
		}
	}
	log, out := parseFlags(t, "--legacy-stderr-threshold-behavior=false", "--stderrthreshold=WARNING")
	log.Info("i")
	log.Warn("w")
	testutil.Equal(t, len(out.lines(t)), 1, "--stderrthreshold without files: lines")
	testutil.Fails(t, testutil.Err(logging.New(logging.Options{File: filepath.Join(dir, "no", "x.log")})), "a log file that cannot be opened is no error")
}

// The largest sizes mean no limit, and do not overflow.
func TestLargestLogFileSizes(t *testing.T) {
	for _, size := range []string{"17592186044417", "18446744073709551615"} { // the first is 2^44 and one
		path := filepath.Join(t.TempDir(), "x.log")
		testutil.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("\n"), 2<<20), 0o600))
		log, _ := parseFlags(t, "--logtostderr=false", "--log-file="+path, "--log-file-max-size="+size)
		log.Info("i")
		info, err := os.Stat(path)
		testutil.Holds(t, err == nil && info.Size() > 2<<20, "%s: %v, %v", size, info, err)
	}
}

func TestLogFileIsTruncatedWhenFull(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	const limit = 1000
	log := testutil.Must(logging.New(logging.Options{Level: logrus.InfoLevel, File: path, FileMaxBytes: limit}))(t)
	for i := range 100 {
		log.Infof("line %d", i)
		info, err := os.Stat(path)
		testutil.Requires(t, err == nil && info.Size() <= limit, "after line %d: %d bytes, %v", i, info.Size(), err)
	}
	data, _ := os.ReadFile(path)
	lines := parse(t, data)
	testutil.Holds(t, lines[len(lines)-1]["msg"] == "line 99", "the last line is not in the file")
}

// What others cut off, as logrotate does with copytruncate, is not counted.
func TestLogFileThatOthersTruncate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.log")
	log := testutil.Must(logging.New(logging.Options{Level: logrus.InfoLevel, File: path, FileMaxBytes: 1000}))(t)
	for range 2 {
		testutil.NoError(t, os.Truncate(path, 0))
		for range 8 { // some 700 bytes
			log.Info("a line")
		}
	}
	testutil.Equal(t, len(parse(t, testutil.Must(os.ReadFile(path))(t))), 8, "lines that are left")
}

func TestTextFormatAndDiscard(t *testing.T) {
	out := &output{}
	log := testutil.Must(logging.New(logging.Options{Component: "c", Level: logrus.InfoLevel, Format: logging.Text, Out: out}))(t)
	log.Info("hello")
	text := out.String()
	testutil.Holds(t, !strings.HasPrefix(text, "{") && strings.Contains(text, "hello"), "%q", text)
	logging.Silent().Error("nobody hears this")
}

func TestHTTPErrorLog(t *testing.T) {
	out := &output{}
	log := testutil.Must(logging.New(logging.Options{Level: logrus.DebugLevel, Out: out}))(t)
	l := testutil.Listen(t)
	server := &http.Server{ErrorLog: logging.HTTPErrorLog(log), Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(200)
		w.WriteHeader(200) // net/http complains
	})}
	done := testutil.Later(func() error { return server.Serve(l) })
	c := testutil.Must(net.Dial("tcp", l.Addr().String()))(t)
	fmt.Fprint(c, "GET / HTTP/1.0\r\n\r\n")
	_, _ = c.Read(make([]byte, 100))
	c.Close()
	_ = server.Close()
	<-done
	logging.HTTPErrorLog(log).Print("http: TLS handshake error from 127.0.0.1: EOF")
	lines := out.lines(t)
	testutil.Holds(t, len(lines) == 2 && lines[0]["level"] == "warning" && lines[1]["level"] == "debug", "%v", lines)
}

// A http.Transport quotes what servers send unasked, by the standard library's
// log. Payload must not get into ours, nor may servers fill it.
func TestUnsolicitedBytesAreNotLogged(t *testing.T) {
	out := &output{}
	entry := testutil.Must(logging.New(logging.Options{Level: logrus.DebugLevel, Out: out}))(t)
	writer, flags := stdlog.Writer(), stdlog.Flags()
	stdlog.SetOutput(logging.HTTPErrorLog(entry).Writer()) // as the programs do
	stdlog.SetFlags(0)
	defer func() { stdlog.SetOutput(writer); stdlog.SetFlags(flags) }()
	var lines []map[string]any
	for try := 0; try < 10 && len(lines) == 0; try++ { // a Transport that is slow to end its own request says nothing, and hangs up
		sendUnasked(t)
		lines = out.lines(t)
	}
	testutil.Holds(t, len(lines) == 1 && lines[0]["level"] == "debug" && !strings.Contains(fmt.Sprint(lines), "hunter2"),
		"%v", lines)
}

// sendUnasked sends a client more than it has asked for, until it hangs up.
func sendUnasked(t *testing.T) {
	t.Helper()
	l := testutil.Listen(t)
	served := make(chan struct{})
	go func() {
		defer close(served)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Read(make([]byte, 4096))
		_, _ = io.WriteString(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nhunter2 hunter2")
		_, _ = io.Copy(io.Discard, c) // until the client has seen it
	}()
	client := &http.Client{Transport: &http.Transport{}}
	r := testutil.Must(client.Get("http://" + l.Addr().String()))(t)
	_ = r.Body.Close()
	<-served
	client.CloseIdleConnections()
}

func TestFlagsAreDocumented(t *testing.T) {
	set := pflag.NewFlagSet("x", pflag.ContinueOnError)
	new(cli.LogFlags).AddTo(set)
	testutil.CheckDocumentedFlags(t, set, "docs/flags.md#Logging")
}
