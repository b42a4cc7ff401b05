package client

import (
	"context"
	"log/slog"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
)

// logTo returns a logger whose lines go to l; nil: nowhere.
func logTo(l *slog.Logger) *logrus.Entry {
	log := logging.Silent()
	if l != nil {
		log.Logger.SetLevel(logrus.DebugLevel)
		log.Logger.AddHook(hook{l})
	}
	return log
}

// hook passes lines on.
type hook struct{ to *slog.Logger }

// Levels implements logrus.Hook.
func (hook) Levels() []logrus.Level { return logrus.AllLevels }

// Fire implements logrus.Hook.
func (h hook) Fire(e *logrus.Entry) error {
	level := map[logrus.Level]slog.Level{logrus.DebugLevel: slog.LevelDebug, logrus.InfoLevel: slog.LevelInfo, logrus.WarnLevel: slog.LevelWarn}
	at, known := level[e.Level]
	if !known {
		at = slog.LevelError
	}
	fields := make([]slog.Attr, 0, len(e.Data))
	for name, value := range e.Data {
		fields = append(fields, slog.Any(name, value))
	}
	h.to.LogAttrs(context.Background(), at, e.Message, fields...)
	return nil
}
