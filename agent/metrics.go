package agent

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/logging"
	"konnectivity/internal/observe"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

// latencyBuckets are upstream's (pkg/agent/metrics/metrics.go), in seconds.
var latencyBuckets = []float64{0.005, 0.025, 0.1, 0.5, 2.5, 10, 30}

// metrics are the agent's. Dashboards read upstream's, so names, labels and
// help of the first group are those of its pkg/agent/metrics and
// konnectivity-client's pkg/common/metrics; the second group is ours.
//
// It is a tunnel.Observer for connections of either protocol, and the
// legacy.Metrics of the old one.
type metrics struct {
	legacy.NoMetrics
	log    logrus.FieldLogger
	totals tunnel.Totals // Up is from server to destination
	open   atomic.Int64  // connections to destinations

	dialLatency       prometheus.Observer
	serverFailures    *prometheus.CounterVec // direction
	dialFailures      *prometheus.CounterVec // reason
	serverConnections prometheus.Gauge
	knownServers      prometheus.Gauge
	packets           *prometheus.CounterVec // segment, packet_type
	streamErrors      *prometheus.CounterVec // segment, code, packet_type

	dialErrors      *prometheus.CounterVec // failure
	denials         prometheus.Counter
	disconnects     *prometheus.CounterVec // reason
	connectFailures *prometheus.CounterVec // reason
	resets          *prometheus.CounterVec // cause
	stalled         prometheus.Counter
	links           *observe.Links

	packetCounters [legacy.Segments][client.PacketType_DRAIN + 1]prometheus.Counter
}

const (
	// MetricsPrefix is what the names of an agent's metrics begin with.
	MetricsPrefix = "konnectivity_network_proxy_agent_"

	kindServer = "server" // whom the links are to
)

func newMetrics(opts Options) (*metrics, error) {
	m := &metrics{log: opts.Log}
	to := observe.NewMaker(opts.Registerer, MetricsPrefix)
	m.upstream(to)
	m.own(to)
	to.Add(m.allPackets(), m.links, m.figures(opts))
	return m, to.Err()
}

// upstream makes what upstream has, but for that of leases (leasecounter.go).
func (m *metrics) upstream(to *observe.Maker) {
	m.dialLatency = to.Histogram("dial_duration_seconds", "Latency of dial to the remote endpoint in seconds", latencyBuckets).WithLabelValues()
	m.serverFailures = to.Counter("server_connection_failure_count",
		"Count of failures to send to or receive from the proxy server, labeled by the direction (from_server or to_server). DEPRECATED, please use stream_events_error_total", "direction")
	m.dialFailures = to.Counter("endpoint_dial_failure_total",
		"Number of failures dialing the remote endpoint, by reason (example: timeout).", "reason")
	m.serverConnections = to.Gauge("open_server_connections", "Current number of open server connections.").WithLabelValues()
	m.knownServers = to.Gauge("known_server_count", "Current number of servers agent is trying to connect to.").WithLabelValues()
	m.packets = observe.NewMaker(nil, MetricsPrefix).Counter("stream_packets_total",
		"Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)", "segment", "packet_type")
	m.streamErrors = to.Counter("stream_errors_total",
		"Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)", "segment", "code", "packet_type")
	for _, segment := range []legacy.Segment{legacy.FromAgent, legacy.ToAgent} {
		for kind := range m.packetCounters[segment] {
			m.packetCounters[segment][kind] = m.packets.WithLabelValues(segment.String(), client.PacketType(kind).String())
		}
	}
}

// own makes ours, with 0 for every label from the start: an alert on an
// increase does not see the first of a series that begins with 1.
func (m *metrics) own(to *observe.Maker) {
	m.dialErrors = to.Counter("endpoint_dial_errors_total", "Number of failed dials to destinations, by failure (example: refused).", "failure")
	for f := range tunnel.Failures() {
		m.dialErrors.WithLabelValues(f.Label())
	}
	m.denials = to.Counter("policy_denials_total", "Number of dials that the destination policy refused.").WithLabelValues()
	m.disconnects = observe.FromZero(to.Counter("server_disconnects_total", "Number of connections to servers that ended, by reason (lost, closed, draining).", "reason"),
		"lost", "closed", "draining")
	m.connectFailures = observe.FromZero(to.Counter("server_connect_failures_total", "Number of attempts to connect to a server that failed, by reason (dial, tls, token, refused, other).", "reason"),
		"dial", "tls", "token", "refused", "other")
	m.resets = to.Counter("connection_resets_total", "Number of open connections that ended abnormally, by cause.", "cause")
	for code := range tunnel.Codes() {
		m.resets.WithLabelValues(code.Label())
	}
	m.links = observe.NewLinks(MetricsPrefix+"link_", kindServer)
	m.stalled = to.Counter("stalled_connections_total", "Number of connections over gRPC that were reset because their reader did not keep up.").WithLabelValues()
}

// figures makes the metrics that are read at each scrape. The buffers of the two protocols
// have the server's names.
func (m *metrics) figures(opts Options) prometheus.Collector {
	all := observe.NewFigures(MetricsPrefix, func() *metrics { return m })
	all.Gauge("open_endpoint_connections", "Current number of open endpoint connections.", func(m *metrics) float64 { return float64(m.open.Load()) })
	all.Add(prometheus.GaugeValue, "buffered_bytes", "Received bytes that wait for a reader, by protocol.", func(_ *metrics, tell observe.Tell) {
		tell(float64(opts.Budget.Used()), protocolLink)
		tell(float64(opts.limits.Budget.Used()), protocolGRPC)
	}, "protocol")
	all.Add(prometheus.GaugeValue, "buffer_limit_bytes", "Maximum number of bytes that may wait for readers, by protocol.", func(_ *metrics, tell observe.Tell) {
		tell(float64(opts.Budget.Max()), protocolLink)
		tell(float64(opts.limits.Budget.Max()), protocolGRPC)
	}, "protocol")
	all.Bytes("bytes_total", "Payload carried to and from destinations, by direction.",
		func(m *metrics) (up, down int64) { return m.totals.Load() }, "to_destination", "from_destination")
	return all
}

// Dialed implements tunnel.Observer. A refusal by policy is worth a line: it is
// either an attack or a rule that is too tight.
func (m *metrics) Dialed(f *tunnel.Flow, took time.Duration, err error) {
	if err == nil {
		observe.Dial(m.dialLatency, f, took)
		if logging.Enabled(m.log, logrus.DebugLevel) {
			m.log.WithFields(fields(f)).WithField("took", took).Debug("connected to destination")
		}
		return
	}
	log := m.log.WithFields(fields(f))
	failure := tunnel.FailureOf(err)
	m.dialErrors.WithLabelValues(failure.Label()).Inc()
	reason := "unknown"
	if failure == tunnel.FailTimeout {
		reason = "timeout"
	}
	m.dialFailures.WithLabelValues(reason).Inc()
	if failure == tunnel.FailDenied {
		m.denials.Inc()
		log.WithError(err).Warn("destination denied by policy")
		return
	}
	log.WithError(err).Debug("cannot connect to destination")
}

// fields identify a connection in the log.
func fields(f *tunnel.Flow) logrus.Fields {
	out := logrus.Fields{"id": f.ID, "destination": f.Address}
	if who := f.Who(); who != "" {
		out["client"] = who.String()
	}
	return out
}

// Unanswered implements tunnel.Observer.
func (m *metrics) Unanswered(*tunnel.Flow, time.Duration, error) {}

// Opened implements tunnel.Observer.
func (m *metrics) Opened(*tunnel.Flow) { m.open.Add(1) }

// Closed implements tunnel.Observer.
func (m *metrics) Closed(f *tunnel.Flow, took time.Duration, err error) {
	m.open.Add(-1)
	if err != nil {
		m.resets.WithLabelValues(tunnel.CodeOf(err).Label()).Inc()
	}
	if !logging.Enabled(m.log, logrus.DebugLevel) {
		return
	}
	up, down := f.Sent()
	log := m.log.WithFields(fields(f)).WithFields(logrus.Fields{"sent": up, "received": down, "took": took})
	if err != nil {
		log = log.WithError(err)
	}
	log.Debug("connection ended")
}

// Packet implements legacy.Metrics.
func (m *metrics) Packet(segment legacy.Segment, kind client.PacketType) {
	if kind >= 0 && int(kind) < len(m.packetCounters[segment]) {
		if c := m.packetCounters[segment][kind]; c != nil {
			c.Inc()
		}
	}
}

// allPackets are the packets of the old protocol and what links have instead.
func (m *metrics) allPackets() prometheus.Collector {
	return observe.Feed(m.packets, func(tell func(observe.Adder, float64)) {
		to, from := legacy.LinkPackets(m.links.Sum(kindServer), false)
		for segment, counts := range map[legacy.Segment]map[client.PacketType]uint64{legacy.ToAgent: to, legacy.FromAgent: from} {
			for kind, n := range counts {
				tell(m.packetCounters[segment][kind], float64(n))
			}
		}
	})
}

// StreamError implements legacy.Metrics. Cancelled streams are this agent's own
// doing: it hangs up on a server that it is connected to already.
func (m *metrics) StreamError(segment legacy.Segment, code codes.Code, kind client.PacketType) {
	if code == codes.Canceled {
		return
	}
	direction, packet := "from_server", "Unknown"
	if segment == legacy.FromAgent {
		direction = "to_server"
	}
	if kind != legacy.NoPacket {
		packet = kind.String()
	}
	m.serverFailures.WithLabelValues(direction).Inc()
	m.streamErrors.WithLabelValues(segment.String(), code.String(), packet).Inc()
}

// Stalled implements legacy.Metrics.
func (m *metrics) Stalled(legacy.Segment) { m.stalled.Inc() }

// connectFailed counts an attempt that failed.
func (m *metrics) connectFailed(err error) {
	reason := "other"
	if typed, ok := errors.AsType[*connectError](err); ok {
		reason = typed.stage
	}
	m.connectFailures.WithLabelValues(reason).Inc()
}

// linkLost counts a link that broke as the old protocol counts its streams itself.
func (m *metrics) linkLost(err error) {
	if !errors.As(err, new(*link.GoAwayError)) {
		m.StreamError(legacy.ToAgent, codes.Unavailable, legacy.NoPacket)
	}
}
