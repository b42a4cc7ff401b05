package e2e

import (
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

// Upstream's metrics (pkg/server/metrics, pkg/agent/metrics, and konnectivity-client's
// pkg/common/metrics), which dashboards read. Unit tests have their types, labels and help.
var (
	keptByServer = strings.Fields(`stream_packets_total stream_errors_total dial_duration_seconds frontend_write_duration_seconds
		connection_duration_seconds grpc_connections http_connections ready_backend_connections ready_backends pending_backend_dials
		established_connections full_receive_channels dial_failure_count culled_leases_count lease_delete_latency_seconds
		lease_delete_total lease_list_latency_seconds lease_list_total`)
	keptByAgent = strings.Fields(`stream_packets_total stream_errors_total dial_duration_seconds server_connection_failure_count
		endpoint_dial_failure_total open_server_connections known_server_count open_endpoint_connections lease_lists_total
		lease_watches_total lease_list_latency_seconds`)
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
		testutil.Holds(t, found && len(all) != before, "docs/metrics.md has no table %q", heading)
	}
	return all
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
	testutil.NoError(t, echoOnce(uds, testutil.Echo(t)).err)
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
	for _, name := range []string{"stream_errors_total", "server_connection_failure_count"} {
		name = "konnectivity_network_proxy_agent_" + name
		testutil.Holds(t, withAll(t, old.HealthURL("/metrics"), name)[name] != nil, "%s is missing", name)
	}
}

func checkMetrics(t *testing.T, url, prefix string, old []string, own string) {
	t.Helper()
	ours, isOld := promised(t, prefix, own), map[string]bool{}
	for _, name := range old {
		isOld[prefix+name] = true
	}
	var soon []string
	for _, all := range []map[string]bool{ours, isOld} {
		for name := range all {
			if !appearsLate[strings.TrimPrefix(name, prefix)] {
				soon = append(soon, name)
			}
		}
	}
	got := withAll(t, url, soon...)
	text, _ := page(url)
	for _, name := range soon {
		testutil.Holds(t, got[name] != nil, "%s is missing", name)
	}
	for name := range got {
		testutil.Holds(t, !strings.HasPrefix(name, "konnectivity_") || isOld[name] || ours[name], "%s is not in docs/metrics.md", name)
	}
	problems, err := promlint.New(strings.NewReader(text)).Lint()
	testutil.Succeeds(t, err, "lint")
	for _, p := range problems {
		testutil.Holds(t, isOld[p.Metric] || !strings.HasPrefix(p.Metric, "konnectivity_"), "%s: %s", p.Metric, p.Text)
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
