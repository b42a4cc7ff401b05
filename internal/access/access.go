// Package access has what the fronts share that pass connections on as they are,
// socks5 and transparent: what is kept of each connection, metrics for all, and
// one line in the log for each once it has ended.
package access

import (
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

// OutcomeOK is the outcome, as a metric's label, of a request whose destination
// answered; the others are the labels of tunnel.Failure.
const OutcomeOK = "ok"

// outcome returns the outcome of a dial as a metric's label.
func outcome(err error) string {
	if err == nil {
		return OutcomeOK
	}
	return tunnel.FailureOf(err).Label()
}

// Log writes the line about c, which has ended, with err if it ended abnormally:
// at info if info is set, else at debug. A line that would not be written costs
// nothing.
func (c *Client) Log(log logrus.FieldLogger, info bool, err error) {
	level := logrus.DebugLevel
	if info {
		level = logrus.InfoLevel
	}
	if !logging.Enabled(log, level) {
		return
	}
	f := &c.Flow
	text, since := "connection ended", f.Opened
	fields := logrus.Fields{"id": f.ID, "front": f.Front, "client": "", "destination": f.Address}
	if f.Source != nil {
		fields["client"] = f.Source.String()
	}
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
		fields["outcome"] = outcome(err)
	case err != nil:
		fields["outcome"] = "broken"
	default:
		fields["outcome"] = OutcomeOK
	}
	if !f.Opened.IsZero() {
		fields["bytes_up"], fields["bytes_down"] = f.Sent()
	}
	fields["seconds"] = time.Since(since).Seconds()
	log.WithFields(fields).Log(level, text)
}
