package front

import (
	"context"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus/hooks/test"
	"go.uber.org/goleak"

	"konnectivity/internal/admission"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

var traits = Traits{Name: "test", Connections: "guests", MaxConns: 10, Waiting: 1, Metrics: Names{Prefix: "guests_"}}

func newShell(t *testing.T, o Options) *Shell[*Client] {
	t.Helper()
	o.Forwarder = &tunnel.Forwarder{Dialer: tunnel.DialerFunc(nil)}
	return testutil.Must(New[*Client](o, traits))(t)
}

// A drain that ends before the connections do cuts them, and that is logged.
func TestDrainCutsWhatOutlastsIt(t *testing.T) {
	for stays, c := range map[time.Duration]struct {
		took  time.Duration
		lines int
	}{time.Second: {time.Second, 0}, time.Hour: {time.Second + time.Minute, 1}} {
		synctest.Test(t, func(t *testing.T) {
			log, hook := test.NewNullLogger()
			s := newShell(t, Options{Log: log, Drain: time.Minute})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			guests := admission.NewHandOff(nil)
			go guests.Give(ctx, &net.TCPConn{})
			begin, hurried := time.Now(), time.Duration(0)
			err := s.Serve(ctx, guests, func(ctx context.Context, _ net.Conn, ended func()) {
				go func() {
					defer ended()
					select {
					case <-ctx.Done():
						testutil.Equal(t, tunnel.CodeOf(context.Cause(ctx)), tunnel.CodeShutdown, "cut for %v", context.Cause(ctx))
					case <-time.After(stays):
					}
				}()
			}, func() { hurried = time.Since(begin) })
			took := time.Since(begin)
			testutil.Holds(t, err == nil && hurried == time.Second && took == c.took,
				"connections that stay for %v: %v, hurried after %v, ended after %v", stays, err, hurried, took)
			if n := len(hook.AllEntries()); n != c.lines || n > 0 && !strings.Contains(hook.LastEntry().Message, "guests") {
				t.Errorf("connections that stay for %v: %d lines", stays, n)
			}
		})
	}
}

// Series are there from the start, and have the labels that the front names.
func TestMetricsHaveTheFrontsLabels(t *testing.T) {
	for name, c := range map[string]struct {
		names Names
		want  string
	}{
		"neither": {Names{}, "guests_refused_connections_total 1\n# HELP guests_requests_total \n# TYPE guests_requests_total counter\nguests_requests_total{outcome=\"ok\"} 0\n"},
		"both": {Names{Reasons: []string{"rude"}, Kinds: []string{"kind"}}, `guests_refused_connections_total{reason="limit"} 1
guests_refused_connections_total{reason="rude"} 0
# HELP guests_requests_total ` + `
# TYPE guests_requests_total counter
guests_requests_total{kind="kind",outcome="ok"} 0
`},
	} {
		c.names.Prefix = "guests_"
		r := prometheus.NewRegistry()
		m := testutil.Must(newMetrics(r, c.names, func() int { return 2 }))(t)
		m.Refuse(ReasonLimit)
		want := "# HELP guests_open_connections \n# TYPE guests_open_connections gauge\nguests_open_connections 2\n" +
			"# HELP guests_refused_connections_total \n# TYPE guests_refused_connections_total counter\n" + c.want
		testutil.Succeeds(t, promtest.GatherAndCompare(r, strings.NewReader(want)), "%s", name)
		testutil.Fails(t, testutil.Err(newMetrics(r, c.names, nil)), "%s: registered twice", name)
	}
}

func TestRedirectedLabelsAreDocumented(t *testing.T) {
	r := prometheus.NewRegistry()
	m := testutil.Must(newMetrics(r, redirected.Metrics, func() int { return 0 }))(t)
	for failure := range tunnel.Failures() {
		m.Requests.WithLabelValues(failure.Label())
	}
	testutil.DocumentedLabels(t, "../../docs/sidecars.md", "Metrics").Check(t, "", testutil.Must(r.Gather())(t))
}

func TestOptionsAreChecked(t *testing.T) {
	f := &tunnel.Forwarder{Dialer: tunnel.DialerFunc(nil)}
	for _, o := range []Options{{}, {Forwarder: &tunnel.Forwarder{}}, {Forwarder: f, MaxConns: -1}, {Forwarder: f, Descriptors: -1}, {Forwarder: f, Drain: -1}} {
		_, err := New[*Client](o, traits)
		testutil.Holds(t, err != nil && strings.HasPrefix(err.Error(), "test: "), "%+v: %v", o, err)
	}
}

// Descriptors bound the open connections of a front whose clients never wait.
func TestDescriptorsBoundFrontsWithoutHandshakes(t *testing.T) {
	never := traits
	never.Waiting = 0
	o := Options{Forwarder: &tunnel.Forwarder{Dialer: tunnel.DialerFunc(nil)}, Descriptors: 8}
	testutil.Equal(t, testutil.Must(New[*Client](o, never))(t).MaxConns, 2, "open connections at most")
}

// Clients that are refused one after the other are worth one line for each cause, not one each.
func TestRefusalsAreLoggedOnceForEachCause(t *testing.T) {
	log, hook := test.NewNullLogger()
	s := newShell(t, Options{Descriptors: 64, MaxConns: 1, Log: log})
	near, far := net.Pipe()
	defer near.Close()
	first := &Client{Conn: tunnel.Wrap(far)}
	testutil.Requires(t, s.Admit(first, nil) && s.Slots.Serve(first) == nil, "the first is refused")
	for range 100 {
		s.Admit(&Client{Conn: tunnel.Wrap(far)}, nil)
		s.WarnFull()
	}
	if lines := hook.AllEntries(); len(lines) != 2 || lines[0].Data["limit"] != 1 || lines[1].Data["limit"] != 16 {
		t.Errorf("%d lines, want one of each limit, 1 and 16", len(lines))
	}
}

// The bound is what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	testutil.Says(t, "../../docs/security.md", "a sidecar's front %v MiB and a quarter", waitingBytes>>20)
}
