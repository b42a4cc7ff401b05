package socks5

import (
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

// log writes the line about a connection that has ended, with err if it ended
// abnormally. If the line would not be written, it costs nothing.
func (s *Server) log(c *client, err error) {
	level := logrus.DebugLevel
	if s.opts.AccessLog {
		level = logrus.InfoLevel
	}
	if !logging.Enabled(s.opts.Log, level) {
		return
	}
	f, text, since := &c.flow, "connection ended", c.flow.Opened
	fields := logrus.Fields{"id": f.ID, "front": f.Front, "client": addrText(f.Source), "destination": f.Address}
	if f.Route != "" {
		fields["route"] = f.Route
	}
	if f.Resolved != "" {
		fields["resolved"] = f.Resolved
	}
	if err != nil {
		fields[logrus.ErrorKey] = err
	}
	switch {
	case f.Opened.IsZero():
		text, since = "connection failed", c.asked
		fields["outcome"] = tunnel.FailureOf(err).Label()
	case err != nil:
		fields["outcome"] = "broken"
	default:
		fields["outcome"] = outcomeOK
	}
	if !f.Opened.IsZero() {
		fields["bytes_up"], fields["bytes_down"] = f.Sent()
	}
	fields["seconds"] = time.Since(since).Seconds()
	s.opts.Log.WithFields(fields).Log(level, text)
}
