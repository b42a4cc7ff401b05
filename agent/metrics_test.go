package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/logging"
	"konnectivity/internal/policy"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

func mustMetrics(t *testing.T) *metrics {
	t.Helper()
	return testutil.Must(newMetrics(Options{Registerer: prometheus.NewRegistry(), Log: logging.Silent()}))(t)
}

// kept is what upstream's agent exposes: name, type, labels and help
// (pkg/agent/metrics/metrics.go, konnectivity-client pkg/common/metrics).
var kept = []struct{ name, kind, labels, help string }{
	{"dial_duration_seconds", "HISTOGRAM", "", "Latency of dial to the remote endpoint in seconds"},
	{"server_connection_failure_count", "COUNTER", "direction", "Count of failures to send to or receive from the proxy server, labeled by the direction (from_server or to_server). DEPRECATED, please use stream_events_error_total"},
	{"endpoint_dial_failure_total", "COUNTER", "reason", "Number of failures dialing the remote endpoint, by reason (example: timeout)."},
	{"open_server_connections", "GAUGE", "", "Current number of open server connections."},
	{"known_server_count", "GAUGE", "", "Current number of servers agent is trying to connect to."},
	{"open_endpoint_connections", "GAUGE", "", "Current number of open endpoint connections."},
	{"stream_packets_total", "COUNTER", "packet_type,segment", "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)"},
	{"stream_errors_total", "COUNTER", "code,packet_type,segment", "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)"},
	{"lease_lists_total", "COUNTER", "http_response_code,reason", "Count of server lease list calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason"},
	{"lease_watches_total", "COUNTER", "http_response_code,reason", "Count of server lease watch calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason"},
	{"lease_list_latency_seconds", "HISTOGRAM", "http_response_code", "Latency of server lease listing in seconds"},
}

func TestKeptMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	m := testutil.Must(newMetrics(Options{Registerer: registry, Log: logging.Silent()}))(t)
	leases := testutil.Must(NewLeaseCounter(LeaseOptions{Log: logging.Silent(), Registerer: registry}))(t)
	m.Dialed(&tunnel.Flow{}, time.Second, nil)
	m.Dialed(&tunnel.Flow{}, time.Second, context.DeadlineExceeded)
	m.StreamError(legacy.FromAgent, codes.Unavailable, legacy.NoPacket)
	leases.lists.WithLabelValues("200", "").Inc()
	leases.watches.WithLabelValues("200", "").Inc()
	leases.latency.WithLabelValues("200").Observe(1)
	families := testutil.Must(registry.Gather())(t)
	for _, want := range kept {
		found := false
		for _, family := range families {
			if family.GetName() != "konnectivity_network_proxy_agent_"+want.name {
				continue
			}
			found = true
			var labels []string
			for _, l := range family.GetMetric()[0].GetLabel() {
				labels = append(labels, l.GetName())
			}
			if family.GetType().String() != want.kind || family.GetHelp() != want.help || strings.Join(labels, ",") != want.labels {
				t.Errorf("%s is a %s by %v: %s", want.name, family.GetType(), labels, family.GetHelp())
			}
		}
		testutil.Holds(t, found, "%s is not there", want.name)
	}
}

// What is not upstream's follows Prometheus' naming.
func TestMetricNames(t *testing.T) {
	registry := prometheus.NewRegistry()
	testutil.Must(newMetrics(Options{Registerer: registry, Log: logging.Silent()}))(t)
	problems := testutil.Must(promtest.GatherAndLint(registry))(t)
	for _, p := range problems {
		testutil.Holds(t, strings.HasSuffix(p.Metric, "known_server_count") || strings.HasSuffix(p.Metric, "failure_count"),
			"%s: %s", p.Metric, p.Text)
	}
}

func TestDialMetrics(t *testing.T) {
	m := mustMetrics(t)
	refused := &tunnel.DialError{Failure: tunnel.FailRefused}
	for _, err := range []error{nil, refused, context.DeadlineExceeded, errors.New("odd"), (*policy.Policy)(nil).AllowHost("169.254.169.254", 80)} {
		m.Dialed(&tunnel.Flow{Request: tunnel.Request{Address: "x:1"}}, time.Second, err)
	}
	for _, c := range []struct {
		what prometheus.Collector
		want float64
	}{
		{m.dialFailures.WithLabelValues("timeout"), 1},
		{m.dialFailures.WithLabelValues("unknown"), 3},
		{m.dialErrors.WithLabelValues("refused"), 1},
		{m.dialErrors.WithLabelValues("denied"), 1},
		{m.denials, 1},
	} {
		testutil.Equal(t, promtest.ToFloat64(c.what), c.want, "%v is", c.what)
	}
}

func TestResetMetrics(t *testing.T) {
	m := mustMetrics(t)
	for _, err := range []error{nil, io.ErrUnexpectedEOF, &tunnel.ResetError{Code: tunnel.CodeTimeout}, &tunnel.ResetError{Code: 999}} {
		m.Opened(nil)
		m.Closed(&tunnel.Flow{}, time.Second, err)
	}
	for code := range tunnel.Codes() {
		cause, want := code.Label(), map[string]float64{"peer_reset": 1, "idle": 1, "other": 1}[code.Label()]
		testutil.Equal(t, promtest.ToFloat64(m.resets.WithLabelValues(cause)), want, "%s is", cause)
	}
	n, want := promtest.CollectAndCount(m.resets), len(slices.Collect(tunnel.Codes()))
	testutil.Holds(t, n == want, "%d causes for %d codes", n, want)
	testutil.Equal(t, m.open.Load(), 0, "connections are open")
}

// A link is counted until it is closed, in whatever way.
func TestLinksAreCountedUntilTheyAreClosed(t *testing.T) {
	const name = MetricsPrefix + "link_sessions"
	for way, end := range map[string]func(session) error{"closed": session.Close, "a duplicate": session.CloseDuplicate} {
		_, opts := newServed(t, "server-1", false)
		registry := prometheus.NewRegistry()
		opts.Registerer = registry
		counted := func(n int) {
			t.Helper()
			want := fmt.Sprintf("# HELP %s Current number of native links, by kind of peer.\n# TYPE %[1]s gauge\n%[1]s{peer=\"server\"} %d\n", name, n)
			testutil.NoError(t, promtest.GatherAndCompare(registry, strings.NewReader(want), name))
		}
		s := testutil.Must(connectOnce(t, opts))(t)
		counted(1)
		testutil.Succeeds(t, end(s), "%s", way)
		counted(0)
	}
}

func TestPacketMetrics(t *testing.T) {
	m := mustMetrics(t)
	m.Packet(legacy.ToAgent, client.PacketType_DATA)
	m.Packet(legacy.ToAgent, client.PacketType(99)) // from a peer that sends anything
	m.Packet(legacy.ToAgent, -1)
	m.Packet(legacy.FromClient, client.PacketType_DATA) // not an agent's
	testutil.Equal(t, promtest.ToFloat64(m.packets.WithLabelValues("to_agent", "DATA")), 1, "how often DATA is counted")
	testutil.Equal(t, promtest.CollectAndCount(m.packets), 2*7, "series")
	m.StreamError(legacy.ToAgent, codes.Unavailable, client.PacketType_DATA)
	m.StreamError(legacy.FromAgent, codes.Internal, legacy.NoPacket)
	m.StreamError(legacy.FromAgent, codes.Canceled, legacy.NoPacket) // our own doing
	testutil.Holds(t, promtest.ToFloat64(m.serverFailures.WithLabelValues("from_server")) == 1 &&
		promtest.ToFloat64(m.serverFailures.WithLabelValues("to_server")) == 1, "directions are mixed up")
	testutil.Equal(t, promtest.ToFloat64(m.streamErrors.WithLabelValues("from_agent", "Internal", "Unknown")), 1,
		"an error without a packet is not counted as Unknown")
	m.linkLost(&link.GoAwayError{}) // the server has said why, and means it
	m.linkLost(io.EOF)
	testutil.Equal(t, promtest.ToFloat64(m.streamErrors.WithLabelValues("to_agent", "Unavailable", "Unknown")), 1, "links that broke")
}

// What is called for each packet, and for each connection while nobody reads
// debug lines.
func TestMetricsAllocateNothing(t *testing.T) {
	m := mustMetrics(t)
	flow := &tunnel.Flow{Request: tunnel.Request{ID: "id", Front: "link", Network: "tcp", Address: "a:1"}}
	testutil.Each(t, map[string]func(){
		"packet":         func() { m.Packet(legacy.ToAgent, client.PacketType_DATA) },
		"unknown packet": func() { m.Packet(legacy.ToAgent, legacy.NoPacket) },
		"full":           func() { m.Full(legacy.ToAgent, 1); m.Full(legacy.ToAgent, -1) },
		"bytes":          func() { m.totals.Up.Add(1) },
		"dialed":         func() { m.Dialed(flow, time.Millisecond, nil) },
		"opened":         func() { m.Opened(flow) },
		"closed":         func() { m.Closed(flow, time.Second, nil) },
	}, func(t *testing.T, f func()) { testutil.MaxAllocs(t, 0, f) })
}

// Every value that a label can have is there from the start, and is explained to operators.
func TestLabelsAreThereAndDocumented(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	testutil.Must(New(Options{ID: "a", Log: logging.Silent(), Registerer: registry, API: []net.Listener{testutil.Listen(t)}}))(t)
	labels := testutil.DocumentedLabels(t, "../docs/metrics.md", "The agent's own", "Of both")
	labels.Check(t, MetricsPrefix, testutil.Must(registry.Gather())(t), "api_requests_total")
}
