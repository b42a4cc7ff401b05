package server

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

// logOfStream is the log of the cluster that a gRPC stream is of.
func logOfStream(stream context.Context) logrus.FieldLogger { return handedOf(stream).cluster.log }

// logOfOwner is the log of the cluster that a connection was found to be of in
// its handshake.
func (s *Server) logOfOwner(owner any) logrus.FieldLogger {
	if h, ok := owner.(*route); ok {
		return h.cluster.log
	}
	return s.opts.Log
}

// connectionLog logs every connection at debug, with the id that it has in sidecar,
// server and agent.
type connectionLog struct{ log logrus.FieldLogger }

// silent reports whether debug lines are off, so that none needs to be made.
func (c connectionLog) silent() bool { return !logging.Enabled(c.log, logrus.DebugLevel) }

func (c connectionLog) fields(flow *tunnel.Flow) logrus.FieldLogger {
	f := logrus.Fields{"id": flow.ID, "front": flow.Front, "address": flow.Address}
	if flow.Source != nil {
		f["source"] = flow.Source.String()
	}
	if who := flow.Who(); who != "" {
		f["client"] = who.String()
	}
	return c.log.WithFields(f)
}

// Dialed implements tunnel.Observer.
func (c connectionLog) Dialed(f *tunnel.Flow, took time.Duration, err error) {
	if c.silent() {
		return
	}
	c.fields(f).WithField("took", took.String()).WithField("error", err).Debug("destination dialed")
}

// Unanswered implements tunnel.Observer.
func (connectionLog) Unanswered(*tunnel.Flow, time.Duration, error) {}

// Opened implements tunnel.Observer.
func (connectionLog) Opened(*tunnel.Flow) {}

// Closed implements tunnel.Observer.
func (c connectionLog) Closed(f *tunnel.Flow, took time.Duration, err error) {
	if c.silent() {
		return
	}
	up, down := f.Sent()
	c.fields(f).WithFields(logrus.Fields{"took": took.String(), "up": up, "down": down, "error": err}).Debug("connection ended")
}
