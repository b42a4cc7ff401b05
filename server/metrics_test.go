package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/sirupsen/logrus"
	"google.golang.org/grpc/codes"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/pki"
	"konnectivity/internal/policyfile"
	"konnectivity/internal/testutil"
	"konnectivity/internal/tlsreload"
	"konnectivity/server/auth"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
)

// kept is what upstream's dashboards and tests read (pkg/server/metrics): type,
// labels, and help where those tests compare it. Gauges must be there with 0.
var kept = map[string]struct {
	kind   dto.MetricType
	labels string
	help   string
}{
	"dial_duration_seconds":           {dto.MetricType_HISTOGRAM, "", ""},
	"frontend_write_duration_seconds": {dto.MetricType_HISTOGRAM, "", ""},
	"connection_duration_seconds":     {dto.MetricType_HISTOGRAM, "", ""},
	"grpc_connections":                {dto.MetricType_GAUGE, "service_method", ""},
	"http_connections":                {dto.MetricType_GAUGE, "", ""},
	"ready_backend_connections":       {dto.MetricType_GAUGE, "", ""},
	"ready_backends":                  {dto.MetricType_GAUGE, "proxy_strategy", ""},
	"pending_backend_dials":           {dto.MetricType_GAUGE, "", "Current number of pending backend dial requests"},
	"established_connections":         {dto.MetricType_GAUGE, "", "Current number of established end-to-end connections (post-dial)."},
	"full_receive_channels":           {dto.MetricType_GAUGE, "service_method", ""},
	"dial_failure_count":              {dto.MetricType_COUNTER, "reason", "Number of dial failures observed. Multiple failures can occur for a single dial request."},
	"stream_packets_total":            {dto.MetricType_COUNTER, "packet_type,segment", "Count of packets processed, by segment and packet type (example: from_client, DIAL_REQ)"},
	"culled_leases_count":             {dto.MetricType_COUNTER, "", "Count of expired leases that the lease garbage collection controller has culled."},
	// these appear with their first observation, as upstream's do
	"stream_errors_total":          {dto.MetricType_COUNTER, "code,packet_type,segment", "Count of gRPC stream errors, by segment, grpc Code, packet type. (example: from_agent, Code.Unavailable, DIAL_RSP)"},
	"lease_delete_latency_seconds": {dto.MetricType_HISTOGRAM, "http_status_code", "Latency of lease deletion calls by the garbage collection controller in seconds."},
	"lease_delete_total":           {dto.MetricType_COUNTER, "http_status_code,reason", "Count of lease delection calls by the garbage collection controller. Labeled by HTTP status code and reason."},
	"lease_list_latency_seconds":   {dto.MetricType_HISTOGRAM, "http_status_code", "Latency of lease list calls by the garbage collection controller in seconds."},
	"lease_list_total":             {dto.MetricType_COUNTER, "http_status_code,reason", "Count of lease deletion calls by the garbage collection controller. Labeled by HTTP status code and reason."},
}

func families(t *testing.T, reg prometheus.Gatherer) map[string]*dto.MetricFamily {
	t.Helper()
	list := testutil.Must(reg.Gather())(t)
	out := make(map[string]*dto.MetricFamily)
	for _, f := range list {
		out[strings.TrimPrefix(f.GetName(), MetricsPrefix)] = f
	}
	return out
}

func labelNames(m *dto.Metric) string {
	var names []string
	for _, l := range m.Label {
		names = append(names, l.GetName())
	}
	sort.Strings(names)
	return strings.Join(names, ",")
}

func TestUpstreamNamesAreKept(t *testing.T) {
	s := crowdedServer(t, 0)
	m, reg := s.metrics, s.opts.Registry
	bare := prometheus.NewRegistry()
	newMetrics(bare)
	fresh := families(t, reg)
	maps.DeleteFunc(fresh, func(name string, _ *dto.MetricFamily) bool { _, upstreams := kept[name]; return !upstreams })
	maps.Copy(fresh, families(t, bare))
	for name, f := range fresh {
		for _, sample := range f.Metric {
			testutil.Holds(t, sample.GetGauge().GetValue() == 0 && sample.GetCounter().GetValue() == 0,
				"%s does not start at 0", name)
		}
	}
	m.StreamError(legacy.FromAgent, codes.Unavailable, client.PacketType_DIAL_RSP)
	m.LeaseListed(200, "", time.Millisecond)
	m.LeaseDeleted(409, "Conflict", time.Millisecond)
	got := families(t, reg)
	for name, want := range kept {
		f := got[name]
		if f == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		testutil.Holds(t, f.GetType() == want.kind && labelNames(f.Metric[0]) == want.labels,
			"%s is a %v with labels %q", name, f.GetType(), labelNames(f.Metric[0]))
		testutil.Holds(t, want.help == "" || f.GetHelp() == want.help, "%s: help is %q", name, f.GetHelp())
	}
	testutil.Equal(t, len(got["dial_failure_count"].Metric), 7, "reasons of dial_failure_count from the start")
	first := got["dial_duration_seconds"].Metric[0].Histogram.Bucket
	testutil.Holds(t, first[0].GetUpperBound() == 1e-6 && first[len(first)-1].GetUpperBound() == 12.5,
		"dial buckets %v", first)
	long := got["connection_duration_seconds"].Metric[0].Histogram.Bucket
	testutil.Holds(t, long[0].GetUpperBound() == 1 && long[len(long)-1].GetUpperBound() == 86400,
		"connection buckets %v", long)
}

func TestGaugesReturnToZero(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := newMetrics(reg)
	m.Opened(nil)
	testutil.Equal(t, promtest.ToFloat64(m.established), 1, "established connections")
	m.Closed(nil, time.Second, nil)
	for _, delta := range []int{1, -1} {
		m.HTTPConnection(delta)
		m.Stream("Proxy", delta)
		m.Full(legacy.FromAgent, delta)
		m.Full(legacy.FromClient, delta)
		m.Connection("clients", delta)
	}
	for name, f := range families(t, reg) {
		for _, sample := range f.Metric {
			testutil.Equal(t, sample.GetGauge().GetValue(), 0, "%s %v", name, sample.Label)
		}
	}
}

// fixedReview answers every review alike.
type fixedReview struct {
	allowed bool
	err     error
}

func (r fixedReview) Create(context.Context, kubeapi.SubjectAccessReviewSpec) (kubeapi.SubjectAccessReviewStatus, error) {
	return kubeapi.SubjectAccessReviewStatus{Allowed: r.allowed}, r.err
}

// Every value that a label can have is there, from the start where it is known then, and is
// explained to operators.
func TestLabelsAreThereAndDocumented(t *testing.T) {
	s := startSharers(t, func(o *Options) {
		path := filepath.Join(t.TempDir(), "policy.yaml")
		testutil.NoError(t, os.WriteFile(path, []byte("version: 1\nmode: report\nrules:\n- {name: a, action: allow, who: ['*'], where: ['*']}\n"), 0o600))
		o.PolicyFile = testutil.Must(policyfile.Open(path, MetricsPrefix, o.Registry, o.Log))(t)
	})
	s.addServed("red", "")
	m := s.metrics
	for _, front := range []string{"connect", "grpc", "link", frontServer, frontAPI} {
		m.Dialed(&tunnel.Flow{Request: tunnel.Request{Front: front}}, 0, nil)
	}
	again := &tunnel.Resume{Epoch: 1}
	for failure := range tunnel.Failures() {
		err := &tunnel.DialError{Failure: failure}
		m.Dialed(&tunnel.Flow{Resume: again}, 0, err)
		m.peerDialed(err)
	}
	m.Dialed(&tunnel.Flow{Resume: again}, 0, nil)
	for _, err := range []error{nil, errors.New("no API"), &auth.Refusal{Code: codes.Unauthenticated}} {
		s.tokenReviewed(0, err)
	}
	for _, api := range []fixedReview{{allowed: true}, {}, {err: errors.New("no API")}} {
		_ = auth.NewAccess(api, m.accessReviewed).Allow(t.Context(), "cn:a", tunnel.Addr{}, "x", 1)
	}
	labels := testutil.DocumentedLabels(t, "../docs/metrics.md", "The server's own", "Of both")
	labels.Check(t, MetricsPrefix, testutil.Must(s.gatherer().Gather())(t), "policy_decisions_total")
}

// TestOwnNamesPassTheLinter: ours follow Prometheus' naming.
func TestOwnNamesPassTheLinter(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := newMetrics(reg)
	m.Dialed(&tunnel.Flow{Request: tunnel.Request{Front: "connect"}}, 0, nil)
	m.Closed(new(tunnel.Flow), 0, errors.New("x"))
	m.Stalled(legacy.FromAgent)
	m.tokenReviewed("accepted", time.Second)
	problems := testutil.Must(promtest.GatherAndLint(reg))(t)
	for _, p := range problems {
		_, old := kept[strings.TrimPrefix(p.Metric, MetricsPrefix)]
		testutil.Holds(t, old, "%s: %s", p.Metric, p.Text)
	}
}

func TestDialFailureReasons(t *testing.T) {
	fail := func(f tunnel.Failure) error { return &tunnel.DialError{Failure: f} }
	for _, tc := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{fail(tunnel.FailNoAgent), "no_agent"},
		{fail(tunnel.FailAgentLost), "backend_close"},
		{fail(tunnel.FailUnavailable), "backend_close"},
		{fail(tunnel.FailRefused), "error_response"},
		{fail(tunnel.FailNoSuchHost), "error_response"},
		{fail(tunnel.FailTimeout), "error_response"},
		{tunnel.AsDialError("", context.DeadlineExceeded), "backend_dial_timeout"},
		{tunnel.AsDialError("", context.Canceled), "frontend_close"},
		{fail(tunnel.FailBadAddress), ""},
	} {
		reg := prometheus.NewPedanticRegistry()
		newMetrics(reg).Dialed(&tunnel.Flow{Request: tunnel.Request{Front: "grpc"}}, time.Second, tc.err)
		for _, sample := range families(t, reg)["dial_failure_count"].Metric {
			want := 0.0
			if sample.Label[0].GetValue() == tc.want {
				want = 1
			}
			testutil.Equal(t, sample.Counter.GetValue(), want, "%v: reason %s has", tc.err, sample.Label[0].GetValue())
		}
	}
}

// TestCardinalityIsBounded: whatever peers send, the number of series stays.
func TestCardinalityIsBounded(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := newMetrics(reg)
	for i := range 1000 {
		m.Packet(legacy.FromClient, client.PacketType(i))
		m.StreamError(legacy.FromClient, codes.Unknown, client.PacketType(i))
		m.Closed(new(tunnel.Flow), 0, &tunnel.ResetError{Code: tunnel.Code(i)})
		m.Dialed(&tunnel.Flow{Request: tunnel.Request{Front: "link", Address: fmt.Sprint("host", i, ":1")}}, 0, &tunnel.DialError{Failure: tunnel.Failure(i)})
	}
	total := 0
	for _, f := range families(t, reg) {
		total += len(f.Metric)
	}
	testutil.AtMost(t, total, 200, "series")
}

// What its ends resume is no failure of this server, however often they try.
func TestResumedConnectionsAreNoFailures(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := newMetrics(reg)
	lasts := &tunnel.Flow{Request: tunnel.Request{Front: "link"}, Resume: &tunnel.Resume{Granted: tunnel.Grant{Window: time.Second}}}
	m.Closed(lasts, 0, &tunnel.ResetError{Code: tunnel.CodeLost})
	m.Closed(lasts, 0, &tunnel.ResetError{Code: tunnel.CodePeerReset})
	m.Closed(&tunnel.Flow{Request: tunnel.Request{Front: "link"}}, 0, &tunnel.ResetError{Code: tunnel.CodeLost})
	m.Dialed(&tunnel.Flow{Request: tunnel.Request{Front: "link"}, Resume: &tunnel.Resume{Epoch: 1}}, 0, &tunnel.DialError{Failure: tunnel.FailAgentLost})
	got := families(t, reg)
	testutil.Equal(t, got["interrupted_connections_total"].Metric[0].Counter.GetValue(), 1, "interrupted connections")
	resets, failures := 0.0, 0.0
	for _, c := range got["connection_resets_total"].Metric {
		resets += c.Counter.GetValue()
	}
	for _, c := range got["dial_failure_count"].Metric {
		failures += c.Counter.GetValue()
	}
	testutil.Holds(t, resets == 2 && failures == 0, "%v resets, want 2; %v failed dials, want 0", resets, failures)
	r := got["requests_total"].Metric
	testutil.Holds(t, len(r) == 1 && r[0].Label[0].GetValue() == "resume", "requests are %v", r)
}

// Observers of connections allocate nothing while debug lines are off, nor do those of packets.
func TestObserversAllocateNothing(t *testing.T) {
	m, log := newMetrics(prometheus.NewRegistry()), logrus.New()
	log.SetOutput(io.Discard)
	observes := func(o tunnel.Observer) func() {
		flow := &tunnel.Flow{Request: tunnel.Request{ID: "id", Front: "link", Network: "tcp", Address: "a:1"}}
		return func() {
			o.Dialed(flow, time.Millisecond, nil)
			o.Opened(flow)
			o.Closed(flow, time.Second, nil)
		}
	}
	testutil.Each(t, map[string]func(){
		"log":            observes(connectionLog{log}),
		"metrics":        observes(m),
		"packet":         func() { m.Packet(legacy.FromAgent, client.PacketType_DATA) },
		"unknown-packet": func() { m.Packet(legacy.FromAgent, legacy.NoPacket) },
		"frontend-write": func() { m.FrontendWrite(time.Millisecond) },
		"full":           func() { m.Full(legacy.FromAgent, 1); m.Full(legacy.FromAgent, -1) },
	}, func(t *testing.T, f func()) { testutil.MaxAllocs(t, 0, f) })
}

// When the first certificate of a tenant's files expires, and how long it lives, follow the files.
func TestATenantsFirstExpiryIsShown(t *testing.T) {
	s := startSharers(t)
	red := s.addServed("red", "")
	figures := func() (all [2]float64) {
		for _, f := range familiesOf([]*cluster{red.cluster()}) {
			switch f.GetName() {
			case MetricsPrefix + "tenant_certificate_expiry_timestamp_seconds":
				all[0] = f.Metric[0].Gauge.GetValue()
			case MetricsPrefix + "tenant_certificate_lifetime_seconds":
				all[1] = f.Metric[0].Gauge.GetValue()
			}
		}
		return all
	}
	for range 2 {
		ca := testutil.Must(tlsreload.Certificates(red.ca.CertPEM))(t)[0]
		testutil.Equal(t, figures(), [2]float64{float64(ca.NotAfter.Unix()), ca.NotAfter.Sub(ca.NotBefore).Seconds()}, "expiry and lifetime")
		red.ca = testutil.Must(pki.NewCAFor("other", time.Hour))(t)
		red.write("")
	}
}
