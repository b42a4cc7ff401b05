// Package logging makes the loggers of programs, which write JSON lines by logrus.
//
// A main calls New once, by cli.LogFlags, which also redirects libraries there; other packages
// are given a logger, or use Silent. The log file, if there is one, belongs to the logger.
package logging

import (
	"io"
	"log"
	"os"
	"time"

	"github.com/sirupsen/logrus"
)

// Format is the format of a line.
type Format string

// The formats.
const (
	JSON Format = "json" // one object a line: time, level, msg, component and fields
	Text Format = "text" // for people
)

// Options configures a logger.
type Options struct {
	Component string       // the program's name, which every line has
	Level     logrus.Level // lowest logged level; required
	Format    Format       // "" is JSON
	Out       io.Writer    // destination of lines; nil means standard error

	// File, if not empty, gets all lines, and Out only those of OutLevel and above.
	// Lines are appended; at FileMaxBytes the file is truncated, with 0 never.
	File         string
	FileMaxBytes int64
	OutLevel     logrus.Level // 0 means all
}

// New returns a logger, which is safe for concurrent use. It writes at most 20 warnings
// and errors with the same message a minute, for each tenant (the field "tenant")
// separately; the next line has the number of dropped ones. Where lines cannot be written for a
// second, those that follow are dropped until they can. It changes no global state.
// It fails only if the file cannot be opened, with a *fs.PathError.
func New(o Options) (*logrus.Entry, error) {
	if o.Out == nil {
		o.Out = os.Stderr
	}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(o.Level)
	logger.SetFormatter(sparseFormatter{formatter(o.Format)})
	logger.AddHook(&sparse{seen: map[string]map[string]*wording{}})
	entry := logger.WithField("component", o.Component)
	out := &patient{out: o.Out, note: noteOf(entry)}
	if o.File != "" {
		file, err := openFile(o.File, o.FileMaxBytes, out)
		if err != nil {
			return nil, err
		}
		logger.SetOutput(&patient{out: file, note: noteOf(entry)})
	}
	switch {
	case o.OutLevel != 0:
		logger.AddHook(&levelWriter{out: out, least: o.OutLevel})
	case o.File == "":
		logger.SetOutput(o.Out)
		_, _ = logger.Formatter.Format(entry) // of text: colours if it sees a terminal the first time
		logger.SetOutput(out)
	}
	return entry, nil
}

// noteOf returns a function that renders a line about dropped ones as those of log.
func noteOf(log *logrus.Entry) func(lost int) []byte {
	format := log.Logger.Formatter.Format // Entry.Bytes takes the lock that writers are called with
	return func(lost int) []byte {
		note := log.WithField("lines", lost)
		note.Time, note.Level = time.Now(), logrus.WarnLevel
		note.Message = "lines of this log were dropped, since they could not be written"
		line, _ := format(note) // fails for fields of odd types alone
		return line
	}
}

// formatter returns the formatter of a format.
func formatter(f Format) logrus.Formatter {
	if f == Text {
		return &logrus.TextFormatter{FullTimestamp: true, TimestampFormat: time.TimeOnly}
	}
	return &logrus.JSONFormatter{TimestampFormat: time.RFC3339Nano}
}

// HTTPErrorLog returns an ErrorLog for an http.Server that writes to l. Failed handshakes,
// which any port scanner causes, are logged at debug, the rest as warnings. It starts no
// goroutine and needs no Close.
func HTTPErrorLog(l logrus.FieldLogger) *log.Logger {
	return log.New(&httpErrors{log: l}, "", 0)
}

// Enabled reports whether a line of this level would be written. Paths of every connection
// use it, since the fields of a line cost memory even if it is dropped. For loggers other
// than those of logrus it returns true.
func Enabled(log logrus.FieldLogger, level logrus.Level) bool {
	switch l := log.(type) {
	case *logrus.Logger:
		return l.IsLevelEnabled(level)
	case *logrus.Entry:
		return l.Logger.IsLevelEnabled(level)
	default:
		return true
	}
}

// Silent returns a logger that writes nothing, for packages that were given none.
func Silent() *logrus.Entry {
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	logger.SetLevel(logrus.PanicLevel)
	return logrus.NewEntry(logger)
}
