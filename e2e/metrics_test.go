package e2e

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// kept is a metric that dashboards made for upstream's programs read.
type kept struct {
	name, kind, labels, help string
}

// Names, types, labels and help of upstream: pkg/server/metrics, pkg/agent/metrics
// and konnectivity-client's pkg/common/metrics.
var (
	packets      = kept{"stream_packets_total", "counter", "packet_type,segment", "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)"}
	streamErrors = kept{"stream_errors_total", "counter", "code,packet_type,segment", "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)"}

	keptByServer = []kept{
		packets, streamErrors,
		{"dial_duration_seconds", "histogram", "", "Latency of dial to the remote endpoint in seconds"},
		{"frontend_write_duration_seconds", "histogram", "", "Latency of write to the frontend in seconds"},
		{"connection_duration_seconds", "histogram", "", "Duration in seconds a proxied end-to-end connection was established (post-dial) before being closed."},
		{"grpc_connections", "gauge", "service_method", "Number of current grpc connections, partitioned by service method."},
		{"http_connections", "gauge", "", "Number of current HTTP CONNECT connections"},
		{"ready_backend_connections", "gauge", "", "Number of konnectivity agent connected to the proxy server. DEPRECATED, please use ready_backends"},
		{"ready_backends", "gauge", "proxy_strategy", "Number of konnectivity agent connected to the proxy server"},
		{"pending_backend_dials", "gauge", "", "Current number of pending backend dial requests"},
		{"established_connections", "gauge", "", "Current number of established end-to-end connections (post-dial)."},
		{"full_receive_channels", "gauge", "service_method", "Number of current connections blocked by a full receive channel, partitioned by service method."},
		{"dial_failure_count", "counter", "reason", "Number of dial failures observed. Multiple failures can occur for a single dial request."},
		{"culled_leases_count", "counter", "", "Count of expired leases that the lease garbage collection controller has culled."},
		{"lease_delete_latency_seconds", "histogram", "http_status_code", "Latency of lease deletion calls by the garbage collection controller in seconds."},
		{"lease_delete_total", "counter", "http_status_code,reason", "Count of lease delection calls by the garbage collection controller. Labeled by HTTP status code and reason."},
		{"lease_list_latency_seconds", "histogram", "http_status_code", "Latency of lease list calls by the garbage collection controller in seconds."},
		{"lease_list_total", "counter", "http_status_code,reason", "Count of lease deletion calls by the garbage collection controller. Labeled by HTTP status code and reason."},
	}
	keptByAgent = []kept{
		packets, streamErrors,
		{"dial_duration_seconds", "histogram", "", "Latency of dial to the remote endpoint in seconds"},
		{"server_connection_failure_count", "counter", "direction", "Count of failures to send to or receive from the proxy server, labeled by the direction (from_server or to_server). DEPRECATED, please use stream_events_error_total"},
		{"endpoint_dial_failure_total", "counter", "reason", "Number of failures dialing the remote endpoint, by reason (example: timeout)."},
		{"open_server_connections", "gauge", "", "Current number of open server connections."},
		{"known_server_count", "gauge", "", "Current number of servers agent is trying to connect to."},
		{"open_endpoint_connections", "gauge", "", "Current number of open endpoint connections."},
		{"lease_lists_total", "counter", "http_response_code,reason", "Count of server lease list calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason"},
		{"lease_watches_total", "counter", "http_response_code,reason", "Count of server lease watch calls made by the agent to the k8s apiserver, labeled by HTTP response code and reason"},
		{"lease_list_latency_seconds", "histogram", "http_response_code", "Latency of server lease listing in seconds"},
	}
)

// inFirstCell matches the names that the first cell of a table's row has.
var inFirstCell = regexp.MustCompile("^\\| (`[a-z_]+`(, )?)+ \\|")

// promised are the metrics that this suite adds and docs/metrics.md promises of
// a program, by their full names. own is the heading of what it alone has.
func promised(t *testing.T, prefix, own string) map[string]bool {
	t.Helper()
	text := string(must(os.ReadFile("../docs/metrics.md"))(t))
	all := map[string]bool{"konnectivity_build_info": true}
	for heading, prefix := range map[string]string{own: prefix, "Of both": prefix, "Certificates": ""} {
		_, section, found := strings.Cut(text, "\n## "+heading+"\n")
		section, _, _ = strings.Cut(section, "\n## ")
		before := len(all)
		for row := range strings.Lines(section) {
			for _, name := range strings.FieldsFunc(inFirstCell.FindString(row), func(r rune) bool { return strings.ContainsRune("|`, ", r) }) {
				all[prefix+name] = true
			}
		}
		if !found || len(all) == before {
			t.Errorf("docs/metrics.md has no table %q", heading)
		}
	}
	return all
}

// labelsOf are the names that any series of f has, comma-separated.
func labelsOf(f *dto.MetricFamily) string {
	all := map[string]bool{}
	for _, series := range f.Metric {
		var names []string
		for _, l := range series.Label {
			names = append(names, l.GetName())
		}
		all[strings.Join(names, ",")] = true
	}
	return strings.Join(slices.Sorted(maps.Keys(all)), " and ")
}

// The pages of built programs, after all has happened once that makes a metric
// appear, against upstream's list and Prometheus' rules.
func TestMetricsOfServerAndAgent(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	api := newKubeAPI(t, s)
	many := &hosting{Suite: s, dir: t.TempDir()}
	many.tenant(t, "east")
	rules := "--policy-file=" + policyFile(t, "rules:\n- {name: all, action: allow, who: ['*'], tenants: ['*'], where: ['*']}\n")
	srv := must(s.StartServer(append(api.apiArgs(), "--enable-lease-controller", "--server-id=a", "--tenants-dir="+many.dir, rules)...))(t)
	a := must(s.StartAgent(srv, append(api.apiArgs(), "--count-server-leases", rules, "--api-bind="+suite.Loopback(testutil.Reserved(t)))...))(t)
	old := must(s.StartAgent(srv, "--link=off"))(t)
	uds := viaConnect("unix", srv.UDS, nil)
	testutil.NoError(t, echoOnce(uds, echoTarget(t)).err)
	refused(t, "nobody listens there", uds, suite.Loopback(1))
	frozen := must(s.StartAgent(srv, "--link=off"))(t)
	_ = frozen.Signal(syscall.SIGKILL) // its stream breaks

	url := srv.HealthURL("/metrics")
	reaches(t, patience, url, "server_ready_backend_connections", 2)
	checkMetrics(t, url, "konnectivity_network_proxy_server_", keptByServer, "The server's own")
	checkMetrics(t, a.HealthURL("/metrics"), "konnectivity_network_proxy_agent_", keptByAgent, "The agent's own")

	// Both kinds of errors of an old agent, when its server dies.
	srv.Kill()
	reaches(t, patience, old.HealthURL("/metrics"), "agent_open_server_connections", 0)
	got := withAll(t, old.HealthURL("/metrics"), "konnectivity_network_proxy_agent_stream_errors_total", "konnectivity_network_proxy_agent_server_connection_failure_count")
	for _, k := range []kept{streamErrors, keptByAgent[3]} {
		same(t, got, "konnectivity_network_proxy_agent_", k)
	}
}

func checkMetrics(t *testing.T, url, prefix string, old []kept, own string) {
	t.Helper()
	ours := promised(t, prefix, own)
	var soon []string
	for name := range ours {
		if !appearsLate[strings.TrimPrefix(name, prefix)] {
			soon = append(soon, name)
		}
	}
	for _, k := range old {
		if !appearsLate[k.name] {
			soon = append(soon, prefix+k.name)
		}
	}
	got := withAll(t, url, soon...)
	text, _ := page(url)
	isOld := map[string]bool{}
	for _, k := range old {
		isOld[prefix+k.name] = true
		if _, there := got[prefix+k.name]; there || !appearsLate[k.name] {
			same(t, got, prefix, k)
		}
	}
	for name := range ours {
		if got[name] == nil && !appearsLate[strings.TrimPrefix(name, prefix)] {
			t.Errorf("%s is missing", name)
		}
	}
	for name := range got {
		if strings.HasPrefix(name, "konnectivity_") && !isOld[name] && !ours[name] {
			t.Errorf("%s is not in docs/metrics.md", name)
		}
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	testutil.Succeeds(t, err, "lint")
	for _, p := range problems {
		if !isOld[p.Metric] && strings.HasPrefix(p.Metric, "konnectivity_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	for name, f := range got {
		series := 0
		for _, m := range f.Metric {
			if series++; m.Histogram != nil { // each bucket is one, and the sum and the count
				series += len(m.Histogram.Bucket) + 1
			}
		}
		testutil.AtMost(t, series, 150, "series of %s", name)
	}
}

// withAll is what is on a page once all these are, or soon should have been: who
// asks says what is missing.
func withAll(t *testing.T, url string, names ...string) (got map[string]*dto.MetricFamily) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		text, _ := page(url)
		parser := expfmt.NewTextParser(model.LegacyValidation)
		got, _ = parser.TextToMetricFamilies(strings.NewReader(text))
		if !slices.ContainsFunc(names, func(name string) bool { return got[name] == nil }) || time.Now().After(end) {
			return got
		}
	}
}

// appearsLate are metrics that are there from the first observation on, as
// upstream's are, and that the test does not bring about here.
var appearsLate = map[string]bool{
	"stream_errors_total": true, "lease_delete_latency_seconds": true, "lease_delete_total": true,
	"server_connection_failure_count": true, "endpoint_dial_failure_total": true,
	"token_review_duration_seconds": true, "access_review_duration_seconds": true, // only where an API is asked
	"tenant_revocations_expiry_timestamp_seconds": true, // only of tenants with lists
}

func same(t *testing.T, got map[string]*dto.MetricFamily, prefix string, want kept) {
	t.Helper()
	f := got[prefix+want.name]
	if f == nil {
		t.Errorf("%s%s is missing", prefix, want.name)
		return
	}
	testutil.Equal(t, kept{want.name, strings.ToLower(f.GetType().String()), labelsOf(f), f.GetHelp()}, want,
		"of %s", prefix)
}
