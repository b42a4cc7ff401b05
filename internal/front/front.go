// Package front is what fronts of sidecars and agents have in common: it accepts
// connections and bounds them, ends them at a shutdown, and counts and logs how they
// ended.
//
// A front with a protocol (socks5, httpsproxy) makes a [Shell] and adds it. The Shell owns
// the slots and the metrics; the connections remain the front's. One without is a [Bare]:
// that of redirected connections, and an agent's for its API server.
package front

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"

	"konnectivity/internal/admission"
	"konnectivity/internal/logging"
	"konnectivity/tunnel"
)

const (
	// DrainHandshake is how long a client may take to complete its first request
	// after Serve was asked to end: enough for a genuine one.
	DrainHandshake = time.Second

	// waitingBytes bounds what all connections of a front that wait for a request
	// cost together.
	waitingBytes = 32 << 20
)

// Options configure a front. Only Forwarder is required.
type Options struct {
	// Forwarder dials what clients ask for, and relays.
	Forwarder *tunnel.Forwarder

	MaxConns    int           // open connections; 0 means the front's default
	Descriptors int           // bounds the descriptors that connections may take; 0: no bound
	Drain       time.Duration // how long open connections may take to finish; 0 cuts them at once

	// AccessLog logs one line for each connection or request at info instead of debug.
	AccessLog bool

	// Untold keeps dials that failed from being warnings where AccessLog is off: the dialer logs
	// the fault.
	Untold bool

	Log        logrus.FieldLogger    // nil discards
	Registerer prometheus.Registerer // nil registers no metrics
}

// Checker decides whether a client may pass. Check may take a moment, and returns false
// once ctx ends.
type Checker interface {
	Check(ctx context.Context, source net.Addr, user, password string) bool
}

// Traits distinguish one front from another.
type Traits struct {
	Name        string // for errors; of a Bare also the Front of its Flows
	Connections string // for the log: "SOCKS5 connections"
	MaxConns    int    // default of Options.MaxConns
	Waiting     int64  // cost in bytes of a connection that has sent no request; 0: none waits for one
	Metrics     Names
}

// Shell is the part of a front that is not its protocol. It may serve any number
// of listeners at once; Options.MaxConns counts the connections of all of them.
type Shell[H admission.Holder] struct {
	Options
	Slots   *admission.Slots[H]
	Metrics *Metrics
	traits  Traits
}

// New checks the options, fills in their defaults and registers the metrics.
func New[H admission.Holder](o Options, t Traits) (*Shell[H], error) {
	switch {
	case o.Forwarder == nil || o.Forwarder.Dialer == nil:
		return nil, fmt.Errorf("%s: no forwarder given", t.Name)
	case o.MaxConns < 0 || o.Descriptors < 0 || o.Drain < 0:
		return nil, fmt.Errorf("%s: timeouts and limits cannot be negative", t.Name)
	}
	if o.MaxConns == 0 {
		o.MaxConns = t.MaxConns
	}
	if o.Log == nil {
		o.Log = logging.Silent()
	}
	share := admission.ShareOut(o.Descriptors)
	limits := admission.Limits{Open: o.MaxConns, Served: share.Relayed, Waiting: share.Unproven, Bytes: waitingBytes, Each: t.Waiting}
	if t.Waiting == 0 {
		o.MaxConns = admission.AtMost(o.MaxConns, share.Relayed)
		limits = admission.Limits{Open: o.MaxConns}
	}
	slots := admission.NewSlots[H](limits)
	m, err := newMetrics(o.Registerer, t.Metrics, slots.Count)
	if err != nil {
		return nil, fmt.Errorf("%s: register metrics: %w", t.Name, err)
	}
	return &Shell[H]{Options: o, Slots: slots, Metrics: m, traits: t}, nil
}

// errShutdown is the error of a connection that is cut because it outlasts the
// drain.
var errShutdown = &tunnel.ResetError{Code: tunnel.CodeShutdown}

// Serve accepts connections from ln, which it closes, until ctx ends. It then
// calls hurry, gives open connections the time of Options.Drain, resets those
// that are left, and returns once every connection has ended: nil after ctx
// ended, else why accepting failed for good. It survives running out of
// descriptors.
//
// start serves a connection on a goroutine of its own and calls ended after the
// last of them has ended. The connection is to be cut when its context ends.
func (s *Shell[H]) Serve(ctx context.Context, ln net.Listener, start func(ctx context.Context, conn net.Conn, ended func()), hurry func()) error {
	// Connections outlive ctx by the drain, so they have a context of their own.
	work, cut := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cut(nil)
	var conns sync.WaitGroup
	acceptor := admission.Acceptor{What: s.traits.Connections, Log: s.Log, MakeRoom: s.Slots.MakeRoom}
	err := acceptor.Run(ctx, ln, func(conn net.Conn) {
		conns.Add(1)
		start(work, conn, conns.Done)
	})
	hurry()
	defer time.AfterFunc(s.Drain, func() {
		if s.Drain > 0 {
			s.Log.Warn(fmt.Sprintf("shutting down: %s that are still open after %v are cut", s.traits.Connections, s.Drain))
		}
		cut(errShutdown)
	}).Stop()
	conns.Wait()
	return err
}

// Admit gives h, a new connection from an address, a slot. Without a free slot it
// counts and abandons h, and returns false.
func (s *Shell[H]) Admit(h H, from net.Addr) bool {
	ok, warn := s.Slots.Take(h, from)
	if warn {
		s.Log.WithField("limit", s.MaxConns).Warn("the limit of open " + s.traits.Connections + " is reached; refusing more")
	}
	if !ok {
		s.Metrics.Refuse(ReasonLimit)
		h.Abandon()
	}
	return ok
}

// WarnFull logs that a client is refused because of Options.Descriptors, once a minute.
func (s *Shell[H]) WarnFull() {
	if !s.Slots.Warn() {
		return
	}
	s.Log.WithField("limit", admission.ShareOut(s.Descriptors).Relayed).
		Warn("as many " + s.traits.Connections + " are served as descriptors (ulimit -n) allow; refusing more")
}

// Forward dials for c, the Client of h, answers and relays. Once the connection has
// ended, it frees everything and calls ended, possibly after it has returned: a
// connection that nothing is read from for a while needs no goroutine of its caller's.
func (s *Shell[H]) Forward(h H, c *Client, answer tunnel.Answer, ended func()) {
	s.Forwarder.Serve(c.ctx, &c.Flow, answer, func(err error) {
		s.logClient(c, err)
		s.Finish(h, c)
		ended()
	})
}

// Finish closes c, the Client of h, and returns its slot.
func (s *Shell[H]) Finish(h H, c *Client) {
	if c.cancel != nil {
		c.cancel(nil)
	}
	_ = c.Conn.Close()
	s.Slots.Release(h)
}

// Answered ends the watch that Client.Ask began, and counts the outcome of the
// dial: err, or that the client has left. It returns which, or the client's end of the
// connection, with all that it has sent.
func (s *Shell[H]) Answered(c *Client, err error) (near tunnel.Conn, _ error) {
	if gone := c.watch.Stop(); gone != nil {
		err = gone
	}
	near = c.ahead.Rest()
	c.watch, c.ahead = nil, nil // the relay does not need them
	s.Metrics.Requests.WithLabelValues(outcome(err)).Inc()
	return near, err
}

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

// Logs reports whether the line about a connection with this outcome is written.
func (o *Options) Logs(outcome string) bool { return logging.Enabled(o.Log, o.level(outcome)) }

// level is that of the access log. Where there is none, a dial that failed is worth a warning:
// many clients show nothing of the reason, and internal/logging bounds the lines of each outcome.
func (o *Options) level(outcome string) logrus.Level {
	switch {
	case o.AccessLog:
		return logrus.InfoLevel
	case !o.Untold && dialFailed(outcome) && !logging.Enabled(o.Log, logrus.DebugLevel):
		return logrus.WarnLevel
	default:
		return logrus.DebugLevel
	}
}

// dialFailed reports whether outcome is that of a dial that failed while its client waited.
func dialFailed(outcome string) bool {
	for f := range tunnel.Failures() {
		if f.Label() == outcome {
			return f != tunnel.FailCancelled
		}
	}
	return false
}

// LogEnd writes the line about f, which began at a time and has
// ended, with the front's own fields. err is nil unless it says more than the
// outcome. Where Logs is false, the caller spares itself the fields.
func (o *Options) LogEnd(text string, f *tunnel.Flow, began time.Time, outcome string, err error, own logrus.Fields) {
	fields := logrus.Fields{
		"id": f.ID, "front": f.Front, "client": "", "destination": f.Address,
		"outcome": outcome, "seconds": time.Since(began).Seconds(),
	}
	if f.Source != nil {
		fields["client"] = f.Source.String()
	}
	if f.Route != "" {
		fields["route"] = string(f.Route)
	}
	if f.Resolved != "" {
		fields["resolved"] = f.Resolved
	}
	if err != nil {
		fields[logrus.ErrorKey] = err
	}
	level := o.level(outcome)
	if level == logrus.WarnLevel {
		text += ": " + outcome // or the lines of destinations that are down would use up those of the tunnel
	}
	o.Log.WithFields(fields).WithFields(own).Log(level, text)
}

// logClient writes the line about c, which has ended, with err if abnormally.
func (s *Shell[H]) logClient(c *Client, err error) {
	f, how := &c.Flow, OutcomeOK
	switch {
	case f.Opened.IsZero():
		how = outcome(err)
	case err != nil:
		how = "broken"
	}
	switch up, down := f.Sent(); {
	case !s.Logs(how):
	case f.Opened.IsZero():
		s.LogEnd("connection failed", f, c.asked, how, err, nil)
	default:
		s.LogEnd("connection ended", f, f.Opened, how, err, logrus.Fields{"bytes_up": up, "bytes_down": down})
	}
}

// IsOwn reports whether this machine has ip.
func IsOwn(ip netip.Addr) bool {
	if ip.IsLoopback() {
		return true
	}
	addrs, _ := net.InterfaceAddrs() // without them, ip counts as remote
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == ip.WithZone("") {
			return true
		}
	}
	return false
}
