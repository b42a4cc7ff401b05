package cli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"

	"konnectivity/internal/logging"
	"konnectivity/internal/resources"
)

// upstreamVerbosity is the default of -v in upstream's programs. It stands for the default
// level, as without -v.
const upstreamVerbosity = 4

// LogFlags are the logging flags of a program: two of our own, and those of klog, for
// command lines of upstream. The zero value is ready for AddTo.
type LogFlags struct {
	level  logrus.Level // 0 if not given; PanicLevel cannot be chosen
	format logging.Format

	verbosity       int32
	vmodule         string
	toStderr        bool
	alsoToStderr    bool
	dir, file       string
	fileMaxMB       uint64
	stderrThreshold logrus.Level
	alsoThreshold   logrus.Level
	legacyThreshold bool

	set *pflag.FlagSet
}

// ineffective are klog's flags for its text format and its several files. They are
// accepted; New logs once that they have no effect.
var ineffective = []string{"add-dir-header", "log-backtrace-at", "one-output", "skip-headers", "skip-log-headers"}

// AddTo defines the flags on set. Values are read when New is called.
func (f *LogFlags) AddTo(set *pflag.FlagSet) {
	f.set = set
	Var(set, &f.level, parseLevel, "log-level", "string", "", "lowest level to log: error, warn, info, debug or trace (default info, or what -v says)")
	Var(set, &f.format, parseFormat, "log-format", "string", "json", "json (one object per line) or text")
	set.Int32VarP(&f.verbosity, "v", "v", upstreamVerbosity, "verbosity as in klog: up to 4 is info, 5 to 7 is debug, 8 and above is trace")
	Var(set, &f.vmodule, parseVmodule, "vmodule", "string", "", "comma-separated pattern=N settings: verbosity of single source files of the Kubernetes client libraries")
	set.BoolVar(&f.toStderr, "logtostderr", true, "log to standard error, not to files")
	set.BoolVar(&f.alsoToStderr, "alsologtostderr", false, "log to standard error as well as to the file (needs --logtostderr=false)")
	set.StringVar(&f.dir, "log-dir", "", "log to COMPONENT.log in this directory (needs --logtostderr=false)")
	set.StringVar(&f.file, "log-file", "", "log to this file (needs --logtostderr=false)")
	set.Uint64Var(&f.fileMaxMB, "log-file-max-size", 1800, "size in megabytes at which the log file is started anew; 0 means no limit")
	Var(set, &f.stderrThreshold, parseSeverity, "stderrthreshold", "string", "ERROR", "with a log file, also log this level and above to standard error: INFO, WARNING, ERROR, FATAL or 0 to 3")
	Var(set, &f.alsoThreshold, parseSeverity, "alsologtostderrthreshold", "string", "INFO", "with --alsologtostderr, the lowest level for standard error")
	set.BoolVar(&f.legacyThreshold, "legacy-stderr-threshold-behavior", true, "if false, --stderrthreshold also applies with --logtostderr")
	for _, name := range ineffective {
		f.addIneffective(set, name)
	}
}

// addIneffective defines a hidden flag without effect.
func (f *LogFlags) addIneffective(set *pflag.FlagSet, name string) {
	const usage = "accepted for compatibility, without effect"
	if name == "log-backtrace-at" {
		set.String(name, "", usage)
	} else {
		set.Bool(name, false, usage)
	}
	_ = set.MarkHidden(name) // fails only for a name that is not defined
}

// New returns the program's logger, which writes lines with component to out, usually
// standard error, or to the file of the flags. It also redirects klog, grpc and the
// standard library's log there, which are global, so only main may call it, once; others
// use logging.New.
//
// It fails if the log file cannot be opened. Invalid values are refused when the flags are
// parsed.
func (f *LogFlags) New(component string, out io.Writer) (*logrus.Entry, error) {
	log, err := logging.New(f.options(component, out))
	if err != nil {
		return nil, fmt.Errorf("--%s: %w", f.fileFlag(), err)
	}
	if err := joinLogs(log, f.verbosity, f.vmodule); err != nil {
		return nil, err
	}
	f.warnIneffective(log)
	logLimits(log)
	return log, nil
}

// options returns the Options of the flags.
func (f *LogFlags) options(component string, out io.Writer) logging.Options {
	o := logging.Options{Component: component, Level: f.logLevel(), Format: f.format, Out: out}
	switch path := f.logFile(component); {
	case !f.toStderr && path != "":
		o.File, o.FileMaxBytes, o.OutLevel = path, int64(min(f.fileMaxMB, math.MaxInt64>>20))<<20, f.stderrThreshold
		if f.alsoToStderr {
			o.OutLevel = f.alsoThreshold
		}
	case !f.legacyThreshold:
		o.OutLevel = f.stderrThreshold
	}
	return o
}

// logLevel is --log-level, or the level of -v.
func (f *LogFlags) logLevel() logrus.Level {
	switch {
	case f.level != 0:
		return f.level
	case f.verbosity >= traceVerbosity:
		return logrus.TraceLevel
	case f.verbosity > upstreamVerbosity:
		return logrus.DebugLevel
	}
	return logrus.InfoLevel
}

// fileFlag is the flag that names the file.
func (f *LogFlags) fileFlag() string {
	if f.file != "" {
		return "log-file"
	}
	return "log-dir"
}

// logFile is the path of the log file; "" for none.
func (f *LogFlags) logFile(component string) string {
	if f.file != "" || f.dir == "" {
		return f.file
	}
	return filepath.Join(f.dir, component+".log")
}

// warnIneffective logs, in one line, which of the given flags have no effect.
func (f *LogFlags) warnIneffective(log logrus.FieldLogger) {
	var given []string
	note := func(names ...string) {
		for _, name := range names {
			if f.set.Changed(name) {
				given = append(given, "--"+name)
			}
		}
	}
	note(ineffective...)
	if f.toStderr || f.logFile("x") == "" {
		note("alsologtostderr", "log-dir", "log-file") // without a file
	}
	if len(given) > 0 {
		log.Warnf("these flags are accepted but have no effect as given: %s", strings.Join(given, ", "))
	}
}

func parseLevel(text string) (logrus.Level, error) {
	level, err := logrus.ParseLevel(text)
	if err != nil || level < logrus.ErrorLevel {
		return 0, errors.New("use error, warn, info, debug or trace")
	}
	return level, nil
}

func parseFormat(text string) (logging.Format, error) {
	switch f := logging.Format(strings.ToLower(text)); f {
	case logging.JSON, logging.Text:
		return f, nil
	}
	return "", errors.New("use json or text")
}

// parseSeverity parses a severity of klog by name or number.
func parseSeverity(text string) (logrus.Level, error) {
	names := []string{"INFO", "WARNING", "ERROR", "FATAL"}
	levels := []logrus.Level{logrus.TraceLevel, logrus.WarnLevel, logrus.ErrorLevel, logrus.FatalLevel}
	if i := slices.Index(names, strings.ToUpper(text)); i >= 0 {
		return levels[i], nil
	}
	if i, err := strconv.Atoi(text); err == nil && i >= 0 && i < len(levels) {
		return levels[i], nil
	}
	return 0, errors.New("use INFO, WARNING, ERROR, FATAL or 0 to 3")
}

// parseVmodule checks a --vmodule, which klog interprets.
func parseVmodule(text string) (string, error) {
	for part := range strings.SplitSeq(text, ",") {
		pattern, number, _ := strings.Cut(part, "=")
		if n, err := strconv.Atoi(number); part != "" && (pattern == "" || err != nil || n < 0) {
			return "", errors.New("use pattern=N, comma-separated")
		}
	}
	return text, nil
}

// logLimits logs the limits of the runtime at debug level: memory in bytes, 0
// for no limit, and processors.
func logLimits(log logrus.FieldLogger) {
	log.WithFields(logrus.Fields{
		"memory_limit_bytes": resources.MemoryLimit(), "processors": runtime.GOMAXPROCS(0),
	}).Debug("limits of the process")
}
