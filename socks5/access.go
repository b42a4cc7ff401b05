package socks5

import (
	"context"
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/adapters"
	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

// access writes the line about one connection once it has ended.
type access struct {
	log   logrus.FieldLogger
	level logrus.Level
	trace adapters.Trace
}

// logs says whether anybody will see the line. A connection of which nobody
// wants to read is spared the memory.
func (s *Server) logs() bool {
	return s.opts.AccessLog || logging.Enabled(s.opts.Log, logrus.DebugLevel)
}

// logged returns what one connection is forwarded with so that it is logged.
func (s *Server) logged(ctx context.Context, f *tunnel.Forwarder) (context.Context, *tunnel.Forwarder) {
	a := &access{log: s.opts.Log, level: logrus.DebugLevel}
	if s.opts.AccessLog {
		a.level = logrus.InfoLevel
	}
	own := *f
	own.Observers = append(slices.Clip(f.Observers), a)
	return adapters.WithTrace(ctx, &a.trace), &own
}

// Dialed implements tunnel.Observer.
func (a *access) Dialed(req *tunnel.Request, took time.Duration, err error) {
	if err != nil {
		a.write(req, took, err, nil)
	}
}

// Opened implements tunnel.Observer.
func (a *access) Opened(*tunnel.Request, *tunnel.Relay) {}

// Closed implements tunnel.Observer.
func (a *access) Closed(req *tunnel.Request, relay *tunnel.Relay, took time.Duration, err error) {
	a.write(req, took, err, relay)
}

// write is the line; relay is nil where nothing was relayed.
func (a *access) write(req *tunnel.Request, took time.Duration, err error, relay *tunnel.Relay) {
	fields := logrus.Fields{
		"id": req.ID, "front": req.Front, "client": addrText(req.Source), "destination": req.Address,
		"seconds": took.Seconds(),
	}
	if a.trace.Route != "" {
		fields["route"] = a.trace.Route
	}
	if a.trace.Resolved != "" {
		fields["resolved"] = a.trace.Resolved
	}
	if relay != nil {
		fields["bytes_up"], fields["bytes_down"] = relay.Sent()
	}
	text := "connection ended"
	switch {
	case relay == nil:
		text = "connection failed"
		fields["outcome"] = tunnel.FailureOf(err).Label()
		fields[logrus.ErrorKey] = err
	case err != nil:
		fields["outcome"] = "broken"
		fields[logrus.ErrorKey] = err
	default:
		fields["outcome"] = outcomeOK
	}
	entry := a.log.WithFields(fields)
	entry.Log(a.level, text)
}
