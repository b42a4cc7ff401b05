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
