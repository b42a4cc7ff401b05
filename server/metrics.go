package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/admin"
	"konnectivity/internal/observe"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
)

// MetricsPrefix is what the names of a server's metrics begin with.
const MetricsPrefix = "konnectivity_network_proxy_server_"

var (
	latencyBuckets  = []float64{1e-6, 1e-5, 1e-4, 0.005, 0.025, 0.1, 0.5, 2.5, 12.5}
	durationBuckets = []float64{1, 5, 15, 30, 60, 300, 900, 1800, 3600, 14400, 43200, 86400}
)

// metrics are what a server tells Prometheus of itself. Names, labels, types and help texts
// that upstream has (pkg/server/metrics/metrics.go) are kept, since dashboards and alerts
// read them; ours stand beside them.
//
// It is a tunnel.Observer, a legacy.Metrics and a lease.Metrics. Its methods may be called
// from any goroutine and never block.
type metrics struct {
	make *observe.Maker

	// Upstream's.
	dialDuration  prometheus.Observer
	writeDuration prometheus.Observer
	connDuration  prometheus.Observer
	grpcConns     *prometheus.GaugeVec
	httpConns     prometheus.Gauge
	established   prometheus.Gauge
	full          [legacy.Segments]prometheus.Gauge
	dialFailures  *prometheus.CounterVec
	packets       [legacy.Segments]map[client.PacketType]prometheus.Counter
	streamErrors  *prometheus.CounterVec
	culled        prometheus.Counter
	leaseDeleteT  *prometheus.HistogramVec
	leaseDeletes  *prometheus.CounterVec
	leaseListT    *prometheus.HistogramVec
	leaseLists    *prometheus.CounterVec

	// Ours.
	requests    *prometheus.CounterVec
	resets      *prometheus.CounterVec
	interrupted prometheus.Counter
	stalled     *prometheus.CounterVec
	denials     prometheus.Counter
	refusals    *prometheus.CounterVec
	rejected    *prometheus.CounterVec
	clientConns *prometheus.GaugeVec
	peerDials   *prometheus.CounterVec
	peerFaults  *prometheus.CounterVec
	apiRefusals *prometheus.CounterVec
	access      *prometheus.HistogramVec
	reviews     *prometheus.HistogramVec

	links *observe.Links // to agents, clients and other servers
}

// newMetrics registers a server's metrics on reg, where there may be one set only. All
// gauges, and all counters whose labels are known, are there with 0.
func newMetrics(reg prometheus.Registerer) *metrics {
	m := &metrics{make: observe.NewMaker(reg, MetricsPrefix), links: observe.NewLinks(MetricsPrefix+"link_", admin.RoleAgent, admin.RoleClient, admin.RoleServer)}
	m.make.Add(m.links)
	m.upstream()
	m.own()
	return m
}

func (m *metrics) upstream() {
	m.dialDuration = m.make.Histogram("dial_duration_seconds", "Latency of dial to the remote endpoint in seconds", latencyBuckets).WithLabelValues()
	m.writeDuration = m.make.Histogram("frontend_write_duration_seconds", "Latency of write to the frontend in seconds", latencyBuckets).WithLabelValues()
	m.connDuration = m.make.Histogram("connection_duration_seconds", "Duration in seconds a proxied end-to-end connection was established (post-dial) before being closed.", durationBuckets).WithLabelValues()
	m.grpcConns = m.make.Gauge("grpc_connections", "Number of current grpc connections, partitioned by service method.", "service_method")
	m.httpConns = m.make.Gauge("http_connections", "Number of current HTTP CONNECT connections").WithLabelValues()
	m.established = m.make.Gauge("established_connections", "Current number of established end-to-end connections (post-dial).").WithLabelValues()
	fed := observe.NewMaker(nil, MetricsPrefix) // linked registers these
	full := fed.Gauge("full_receive_channels", "Number of current connections blocked by a full receive channel, partitioned by service method.", "service_method")
	for _, method := range []string{"Proxy", "Connect"} {
		m.grpcConns.WithLabelValues(method)
	}
	m.full = [legacy.Segments]prometheus.Gauge{
		legacy.FromClient: full.WithLabelValues("Proxy"), legacy.ToClient: full.WithLabelValues("Proxy"),
		legacy.FromAgent: full.WithLabelValues("Connect"), legacy.ToAgent: full.WithLabelValues("Connect"),
	}
	m.dialFailures = observe.FromZero(m.make.Counter("dial_failure_count", "Number of dial failures observed. Multiple failures can occur for a single dial request.", "reason"),
		dialFailureReasons...)
	packets := fed.Counter("stream_packets_total", "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)", "segment", "packet_type")
	for s := range legacy.Segment(legacy.Segments) {
		m.packets[s] = make(map[client.PacketType]prometheus.Counter)
		for kind, name := range client.PacketType_name {
			m.packets[s][client.PacketType(kind)] = packets.WithLabelValues(s.String(), name)
		}
		m.packets[s][legacy.NoPacket] = packets.WithLabelValues(s.String(), "Unknown")
	}
	m.linked(packets, full)
	m.streamErrors = m.make.Counter("stream_errors_total", "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)", "segment", "code", "packet_type")
	m.culled = m.make.Counter("culled_leases_count", "Count of expired leases that the lease garbage collection controller has culled.").WithLabelValues()
	m.leaseDeleteT = m.make.Histogram("lease_delete_latency_seconds", "Latency of lease deletion calls by the garbage collection controller in seconds.", prometheus.DefBuckets, "http_status_code")
	m.leaseDeletes = m.make.Counter("lease_delete_total", "Count of lease delection calls by the garbage collection controller. Labeled by HTTP status code and reason.", "http_status_code", "reason")
	m.leaseListT = m.make.Histogram("lease_list_latency_seconds", "Latency of lease list calls by the garbage collection controller in seconds.", prometheus.DefBuckets, "http_status_code")
	m.leaseLists = m.make.Counter("lease_list_total", "Count of lease deletion calls by the garbage collection controller. Labeled by HTTP status code and reason.", "http_status_code", "reason")
}

func (m *metrics) own() {
	m.requests = m.make.Counter("requests_total", "Count of requested connections, by client protocol (connect, grpc, link; server: another server forwards one; api: an agent asks for its API server; resume: to go on with one) and outcome: ok, or why the dial failed.", "front", "outcome")
	m.resets = m.make.Counter("connection_resets_total", "Count of established connections that ended abnormally, by cause.", "cause")
	for code := range tunnel.Codes() {
		m.resets.WithLabelValues(code.Label())
	}
	m.interrupted = m.make.Counter("interrupted_connections_total", "Count of established connections that lost their path through this server and that their ends resume over another.").WithLabelValues()
	m.stalled = observe.FromZero(m.make.Counter("stalled_connections_total", "Count of connections of old peers reset because their reader did not keep up, by segment.", "segment"),
		legacy.FromAgent.String(), legacy.FromClient.String())
	m.denials = m.make.Counter("policy_denials_total", "Count of connections refused by the policy of the server, of a tenant or of the agent, or by access review.").WithLabelValues()
	m.refusals = observe.FromZero(m.make.Counter("agent_refusals_total", "Count of agents refused, by reason: invalid, unauthenticated, denied, unavailable.", "reason"),
		"invalid", "unauthenticated", "denied", "unavailable")
	m.rejected = m.make.Counter("rejected_connections_total", "Count of accepted connections that never became a request, by listener and reason: limit, evicted, proxy, tls, timeout, protocol, refused, closed.", "listener", "reason")
	m.clientConns = m.make.Gauge("listener_connections", "Number of current connections, by listener (clients, agents, servers).", "listener")
	for _, l := range []string{"clients", "agents", "servers"} {
		m.clientConns.WithLabelValues(l)
		for _, reason := range []string{"limit", "evicted", "proxy", "tls", "timeout", "protocol", "refused", "closed"} {
			m.rejected.WithLabelValues(l, reason)
		}
	}
	m.peerDials = observe.FromZero(m.make.Counter("peer_dials_total", "Count of dials forwarded to other servers, by outcome: ok, or why the dial failed.", "outcome"),
		"ok")
	m.peerFaults = observe.FromZero(m.make.Counter("peer_faults_total", "Count of faults of other servers, by reason: full (it told too many routes), slow (it did not read what it asked to be told), protocol (it stopped to tell), tenant (it forwarded for a tenant that is not served here).", "reason"),
		"full", "slow", "protocol", "tenant")
	m.apiRefusals = observe.FromZero(m.make.Counter("api_refusals_total", "Count of agents' requests refused, by reason: unset (no API server is named for the agent's cluster), alone (no agent beside the API server is connected), other (it asked for something else).", "reason"),
		"unset", "alone", "other")
	m.access = m.make.Histogram("access_review_duration_seconds", "Latency of SubjectAccessReview calls in seconds, by verdict: allowed, denied, unavailable.", prometheus.DefBuckets, "verdict")
	m.reviews = m.make.Histogram("token_review_duration_seconds", "Latency of TokenReview calls in seconds, by verdict: accepted, refused, unavailable.", prometheus.DefBuckets, "verdict")
}
