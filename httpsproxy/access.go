package httpsproxy

import (
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

// access is the line that is logged about a request once it has ended.
type access struct {
	id, kind, destination string
	client                string
	start                 time.Time
	status                int          // sent to the client; 0: none
	outcome               string       // a metric's label
	flow                  *tunnel.Flow // nil if it was refused before there was one
	up, down              int64        // bytes of content, where nothing was relayed
	err                   error        // why it ended; nil: in order
}

func newAccess(c *client, kind, destination string) *access {
	return &access{kind: kind, destination: destination, client: c.RemoteAddr().String(), start: time.Now(), outcome: outcomeOK}
}

// count is called once for each request, when its destination has answered or
// failed.
func (s *Server) count(a *access) { s.metrics.requests.WithLabelValues(a.kind, a.outcome).Inc() }

// log writes the line. It includes an error only if that says more than
// outcome.
func (s *Server) log(a *access) {
	if !s.opts.AccessLog && !logging.Enabled(s.opts.Log, logrus.DebugLevel) {
		return
	}
	fields := logrus.Fields{
		"front": a.kind, "client": a.client, "destination": a.destination, "status": a.status, "outcome": a.outcome,
		"seconds": time.Since(a.start).Seconds(), "bytes_up": a.up, "bytes_down": a.down,
	}
	route, resolved := "", ""
	if a.flow != nil {
		route, resolved = string(a.flow.Route), a.flow.Resolved
	}
	for name, value := range map[string]string{"id": a.id, "route": route, "resolved": resolved} {
		if value != "" {
			fields[name] = value
		}
	}
	if a.err != nil {
		fields[logrus.ErrorKey] = a.err
	}
	line := s.opts.Log.WithFields(fields)
	if s.opts.AccessLog {
		line.Info("request ended")
		return
	}
	line.Debug("request ended")
}
