package httpsproxy

import (
	"bytes"
	"log"

	"github.com/sirupsen/logrus"
)

// errorLog is for net/http, which only reports that a handler panicked or
// misused it.
func errorLog(to logrus.FieldLogger) *log.Logger { return log.New(errorWriter{to}, "", 0) }

type errorWriter struct{ log logrus.FieldLogger }

func (w errorWriter) Write(p []byte) (int, error) {
	w.log.Error(string(bytes.TrimSpace(p)))
	return len(p), nil
}

// printfLog is goproxy's logger. What it warns of is ordinary behaviour of
// clients and destinations.
type printfLog struct{ log logrus.FieldLogger }

// Printf implements goproxy.Logger.
func (l printfLog) Printf(format string, v ...any) { l.log.Debugf("goproxy: "+format, v...) }
