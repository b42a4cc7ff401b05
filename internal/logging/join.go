package logging

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
)

// joinProcess makes the libraries' process-wide loggers write to l. It is not
// safe while they log, so only for the start of main.
func joinProcess(l *logrus.Entry, verbosity int32, vmodule string) error {
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
	// The reader of the log may go away. A filter in a pipe would end with it;
	// a server must not.
	signal.Ignore(syscall.SIGPIPE)
	log.SetFlags(0)
	log.SetOutput(&httpErrors{log: l})
	return nil
}

// slogHandler writes slog records to l with its fields. What --vmodule selects
// is wanted whatever its level: klog has chosen already. klog passes its
// unstructured warnings on as information, so that is how they appear.
func slogHandler(l *logrus.Entry, all bool) slog.Handler {
	handler := logrusslog.NewHandler(l.Logger, &logrusslog.HandlerOptions{
		LevelMapper: func(level slog.Level) logrus.Level {
			switch {
			case level >= slog.LevelError:
				return logrus.ErrorLevel // never fatal: the level only, and ours does not exit
			case level >= slog.LevelWarn:
				return logrus.WarnLevel
			case level >= slog.LevelInfo || all:
				return logrus.InfoLevel
			case level > -traceVerbosity: // a verbosity n of klog is -n there
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

// noBodies drops records that hold what was sent to or came from the Kubernetes
// API, which client-go logs at verbosity 8 as an attribute "body" (k8s.io/
// client-go v0.37, rest/request.go): in a TokenReview that is an agent's token.
// Verbose logging of a library must not include that.
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

// grpcLogger takes grpc's messages. Those about single connections that come
// and go are details, logged at debug; errors are grpc's own, logged as
// warnings.
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

// grpc calls these when it cannot continue, and exits the process itself.
func (g *grpcLogger) Fatal(args ...any)            { g.log.Error(args...) }
func (g *grpcLogger) Fatalln(args ...any)          { g.log.Errorln(args...) }
func (g *grpcLogger) Fatalf(f string, args ...any) { g.log.Errorf(f, args...) }

// V reports whether grpc should produce messages of its verbosity l.
func (g *grpcLogger) V(l int) bool {
	if l == 0 {
		return g.log.Logger.IsLevelEnabled(logrus.DebugLevel)
	}
	return g.log.Logger.IsLevelEnabled(logrus.TraceLevel)
}
