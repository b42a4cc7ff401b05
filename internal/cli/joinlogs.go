package cli

import (
	"context"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/sirupsen/logrus"
	logrusslog "github.com/sirupsen/logrus/hooks/slog"
	"google.golang.org/grpc/grpclog"
	"k8s.io/klog/v2"

	"konnectivity/internal/logging"
)

// traceVerbosity is the least verbosity of klog for the level trace.
const traceVerbosity = 8

// joinLogs redirects the global loggers of libraries to l. It is not safe while they
// log, so only main may call it, at its start.
func joinLogs(l *logrus.Entry, verbosity int32, vmodule string) error {
	if !l.Logger.IsLevelEnabled(logrus.DebugLevel) {
		verbosity = 0 // the client libraries start to log details at 1
	}
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	if err := flags.Set("v", strconv.Itoa(int(verbosity))); err != nil {
		return fmt.Errorf("--v=%d: %w", verbosity, err)
	}
	if err := flags.Set("vmodule", vmodule); err != nil {
		return fmt.Errorf("--vmodule=%s: %w", vmodule, err)
	}
	klog.SetSlogLogger(slog.New(slogHandler(l, vmodule != "")))
	grpclog.SetLoggerV2(&grpcLogger{log: l.WithField("library", "grpc")})
	// The reader of a pipe may end, which must not end the program.
	signal.Ignore(syscall.SIGPIPE)
	log.SetFlags(0)
	log.SetOutput(logging.HTTPErrorLog(l).Writer())
	return nil
}

// slogHandler writes slog records to l with its fields. all accepts every level, as klog
// has already selected records with --vmodule. klog passes unstructured warnings as
// information, and so they appear.
func slogHandler(l *logrus.Entry, all bool) slog.Handler {
	handler := logrusslog.NewHandler(l.Logger, &logrusslog.HandlerOptions{
		LevelMapper: func(level slog.Level) logrus.Level {
			switch {
			case level >= slog.LevelError:
				return logrus.ErrorLevel // not fatal, which exits
			case level >= slog.LevelWarn:
				return logrus.WarnLevel
			case level >= slog.LevelInfo || all:
				return logrus.InfoLevel
			case level > -traceVerbosity: // slog has a verbosity n of klog as the level -n
				return logrus.DebugLevel
			}
			return logrus.TraceLevel
		},
	})
	var attrs []slog.Attr
	for key, value := range l.Data {
		attrs = append(attrs, slog.Any(key, value))
	}
	return noBodies{handler.WithAttrs(append(attrs, slog.String("library", "klog")))}
}

// noBodies drops records with the body of a request to the Kubernetes API or of its answer.
// client-go logs it at verbosity 8 as the attribute "body" (k8s.io/client-go v0.37,
// rest/request.go); that of a TokenReview contains an agent's token.
type noBodies struct{ slog.Handler }

// Handle implements slog.Handler.
func (h noBodies) Handle(ctx context.Context, record slog.Record) error {
	body := false
	record.Attrs(func(a slog.Attr) bool {
		body = a.Key == "body"
		return !body
	})
	if body {
		return nil
	}
	return h.Handler.Handle(ctx, record)
}

// WithAttrs implements slog.Handler.
func (h noBodies) WithAttrs(attrs []slog.Attr) slog.Handler {
	return noBodies{h.Handler.WithAttrs(attrs)}
}

// WithGroup implements slog.Handler.
func (h noBodies) WithGroup(name string) slog.Handler { return noBodies{h.Handler.WithGroup(name)} }

// grpcLogger logs the messages of grpc. Those about single connections are logged at
// debug, errors of grpc itself as warnings.
type grpcLogger struct{ log *logrus.Entry }

func (g *grpcLogger) Info(args ...any)               { g.log.Debug(args...) }
func (g *grpcLogger) Infoln(args ...any)             { g.log.Debugln(args...) }
func (g *grpcLogger) Infof(f string, args ...any)    { g.log.Debugf(f, args...) }
func (g *grpcLogger) Warning(args ...any)            { g.log.Debug(args...) }
func (g *grpcLogger) Warningln(args ...any)          { g.log.Debugln(args...) }
func (g *grpcLogger) Warningf(f string, args ...any) { g.log.Debugf(f, args...) }
func (g *grpcLogger) Error(args ...any)              { g.log.Warn(args...) }
func (g *grpcLogger) Errorln(args ...any)            { g.log.Warnln(args...) }
func (g *grpcLogger) Errorf(f string, args ...any)   { g.log.Warnf(f, args...) }

// grpc calls these before it exits the process.
func (g *grpcLogger) Fatal(args ...any)            { g.log.Error(args...) }
func (g *grpcLogger) Fatalln(args ...any)          { g.log.Errorln(args...) }
func (g *grpcLogger) Fatalf(f string, args ...any) { g.log.Errorf(f, args...) }

// V reports whether grpc should log messages of verbosity l.
func (g *grpcLogger) V(l int) bool {
	if l == 0 {
		return g.log.Logger.IsLevelEnabled(logrus.DebugLevel)
	}
	return g.log.Logger.IsLevelEnabled(logrus.TraceLevel)
}
