package server

import (
	"context"
	"errors"
	"strconv"
	"time"

	"google.golang.org/grpc/codes"

	"konnectivity/internal/observe"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
)

// dialFailureReasons are upstream's values of dial_failure_count's label.
var dialFailureReasons = []string{"no_agent", "error_response", "unrecognized_response", "send_rsp", "backend_close", "backend_dial_timeout", "frontend_close"}

// Dialed implements tunnel.Observer.
func (m *metrics) Dialed(f *tunnel.Flow, took time.Duration, err error) {
	if f.Resume.Again() { // a try of many, about a connection that was counted when it began
		m.requests.WithLabelValues("resume", outcome(err)).Inc()
		return
	}
	m.requests.WithLabelValues(f.Front, outcome(err)).Inc()
	if err == nil {
		observe.Dial(m.dialDuration, f, took)
		return
	}
	failure := tunnel.FailureOf(err)
	switch failure {
	case tunnel.FailDenied:
		m.denials.Inc()
	case tunnel.FailBadAddress:
		return // no dial was made
	}
	m.dialFailures.WithLabelValues(dialFailureReason(failure, err)).Inc()
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return tunnel.FailureOf(err).Label()
}

func dialFailureReason(failure tunnel.Failure, err error) string {
	switch {
	case failure == tunnel.FailNoAgent:
		return "no_agent"
	case failure == tunnel.FailAgentLost, failure == tunnel.FailUnavailable:
		return "backend_close"
	case failure == tunnel.FailCancelled:
		return "frontend_close"
	case failure == tunnel.FailTimeout && errors.Is(err, context.DeadlineExceeded):
		return "backend_dial_timeout" // our own bound; the agent's is its answer
	default:
		return "error_response"
	}
}

// Unanswered implements tunnel.Observer.
func (m *metrics) Unanswered(f *tunnel.Flow, _ time.Duration, _ error) {
	if !f.Resume.Again() {
		m.dialFailures.WithLabelValues("send_rsp").Inc()
	}
}

// Opened implements tunnel.Observer.
func (m *metrics) Opened(*tunnel.Flow) { m.established.Inc() }

// Closed implements tunnel.Observer.
func (m *metrics) Closed(f *tunnel.Flow, took time.Duration, err error) {
	m.established.Dec()
	m.connDuration.Observe(took.Seconds())
	switch {
	case err == nil:
	case f.Interrupted(err):
		m.interrupted.Inc()
	default:
		m.resets.WithLabelValues(tunnel.CodeOf(err).Label()).Inc()
	}
}

// Packet implements legacy.Metrics.
func (m *metrics) Packet(s legacy.Segment, kind client.PacketType) {
	c, ok := m.packets[s][kind]
	if !ok {
		c = m.packets[s][legacy.NoPacket]
	}
	c.Inc()
}

// StreamError implements legacy.Metrics.
func (m *metrics) StreamError(s legacy.Segment, code codes.Code, kind client.PacketType) {
	name, ok := client.PacketType_name[int32(kind)]
	if !ok {
		name = "Unknown"
	}
	m.streamErrors.WithLabelValues(s.String(), code.String(), name).Inc()
}

// Full implements legacy.Metrics.
func (m *metrics) Full(s legacy.Segment, delta int) {
	m.full[s].Add(float64(delta))
}

// Stalled implements legacy.Metrics.
func (m *metrics) Stalled(s legacy.Segment) { m.stalled.WithLabelValues(s.String()).Inc() }

// UnknownDialResponse implements legacy.Metrics.
func (m *metrics) UnknownDialResponse() {
	m.dialFailures.WithLabelValues("unrecognized_response").Inc()
}

// Stream implements legacy.Metrics.
func (m *metrics) Stream(method string, delta int) {
	m.grpcConns.WithLabelValues(method).Add(float64(delta))
}

// LeaseListed implements lease.Metrics.
func (m *metrics) LeaseListed(code int, reason string, took time.Duration) {
	m.leaseLists.WithLabelValues(strconv.Itoa(code), reason).Inc()
	m.leaseListT.WithLabelValues(strconv.Itoa(code)).Observe(took.Seconds())
}

// LeaseDeleted implements lease.Metrics.
func (m *metrics) LeaseDeleted(code int, reason string, took time.Duration) {
	m.leaseDeletes.WithLabelValues(strconv.Itoa(code), reason).Inc()
	m.leaseDeleteT.WithLabelValues(strconv.Itoa(code)).Observe(took.Seconds())
}

// LeaseCulled implements lease.Metrics.
func (m *metrics) LeaseCulled() { m.culled.Inc() }

// peerDialed is told how a dial by another server went.
func (m *metrics) peerDialed(err error) { m.peerDials.WithLabelValues(outcome(err)).Inc() }

// peerFault counts a fault of another server, by reason.
func (m *metrics) peerFault(reason string) { m.peerFaults.WithLabelValues(reason).Inc() }

// apiRefused counts a request of an agent that was refused, by reason.
func (m *metrics) apiRefused(reason string) { m.apiRefusals.WithLabelValues(reason).Inc() }

// HTTPConnection is told +1 and -1 as a CONNECT request begins and ends.
func (m *metrics) HTTPConnection(delta int) { m.httpConns.Add(float64(delta)) }

// FrontendWrite is told how long a write to a client took.
func (m *metrics) FrontendWrite(took time.Duration) { m.writeDuration.Observe(took.Seconds()) }

// agentRefused counts a refused agent; reason is one of auth.Refusal's labels.
func (m *metrics) agentRefused(reason string) { m.refusals.WithLabelValues(reason).Inc() }

// tokenReviewed records a TokenReview call: its verdict (accepted, refused or
// unavailable) and duration.
func (m *metrics) tokenReviewed(verdict string, took time.Duration) {
	m.reviews.WithLabelValues(verdict).Observe(took.Seconds())
}

// accessReviewed records a SubjectAccessReview call: its verdict (allowed, denied or
// unavailable) and duration.
func (m *metrics) accessReviewed(verdict string, took time.Duration) {
	m.access.WithLabelValues(verdict).Observe(took.Seconds())
}

// Connection is told +1 and -1 as a listener ("clients", "agents") accepts a
// connection and as it ends.
func (m *metrics) Connection(listener string, delta int) {
	m.clientConns.WithLabelValues(listener).Add(float64(delta))
}

// Rejected counts a connection that never became a request.
func (m *metrics) Rejected(listener, reason string) {
	m.rejected.WithLabelValues(listener, reason).Inc()
}
