package httpsproxy

import (
	"bytes"
	"log"

	"github.com/sirupsen/logrus"
)

// count is called once a request, when its outcome is known.
func (s *Server) count(c *client, kind, outcome, destination string, status int) {
	s.metrics.requests.WithLabelValues(kind, outcome).Inc()
	line := s.opts.Log.WithFields(logrus.Fields{
		"client": c.RemoteAddr().String(), "kind": kind, "destination": destination, "status": status, "outcome": outcome,
	})
	if s.opts.AccessLog {
		line.Info("HTTP proxy request")
		return
	}
	line.Debug("HTTP proxy request")
}

// debugLog is what net/http may say: nothing that an operator must act on.
func debugLog(to logrus.FieldLogger) *log.Logger { return log.New(debugWriter{to}, "", 0) }

type debugWriter struct{ log logrus.FieldLogger }

func (w debugWriter) Write(p []byte) (int, error) {
	w.log.Debug(string(bytes.TrimSpace(p)))
	return len(p), nil
}

// printfLog is goproxy's logger.
type printfLog struct{ log logrus.FieldLogger }

// Printf implements goproxy.Logger.
func (l printfLog) Printf(format string, v ...any) { l.log.Debugf("goproxy: "+format, v...) }
