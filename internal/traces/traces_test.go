package traces

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/sirupsen/logrus"
	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// collector keeps the spans that it is sent.
type collector struct {
	*httptest.Server
	answer atomic.Pointer[func(http.ResponseWriter)] // nil: takes all

	mu    sync.Mutex
	spans []span
}

func newCollector(t *testing.T) *collector {
	t.Helper()
	c := new(collector)
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var all request
		if err := json.Unmarshal(body, &all); err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s %v: %v", r.Method, r.URL, r.Header, err)
		}
		if answer := c.answer.Load(); answer != nil {
			(*answer)(w)
			return
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.spans = append(c.spans, all.ResourceSpans[0].ScopeSpans[0].Spans...)
	}))
	t.Cleanup(c.Close)
	return c
}

// answers has the collector answer so from now on.
func (c *collector) answers(code int, text string) {
	answer := func(w http.ResponseWriter) { w.WriteHeader(code); fmt.Fprint(w, text) }
	c.answer.Store(&answer)
}

func (c *collector) got() []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.spans
}

// newExporter returns an Exporter to an address, and what it logs.
func newExporter(t *testing.T, address string, ratio float64) (*Exporter, *testutil.Output, *prometheus.Registry) {
	t.Helper()
	said, registry := new(testutil.Output), prometheus.NewPedanticRegistry()
	log := logrus.New()
	log.SetOutput(said)
	endpoint := testutil.Must(parseEndpoint(address))(t)
	e := testutil.Must(New(Options{Flags: Flags{endpoint, ratio}, Component: "konnectivity-agent", Name: "a", Log: log, Registerer: registry}))(t)
	return e, said, registry
}

// end has e send what waits, as a process does that ends. It takes no time while a collector, on
// a busy machine too, is about to answer.
func end(t *testing.T, e *Exporter) (took time.Duration) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		start := time.Now()
		e.Run(ctx)
		took = time.Since(start)
	})
	return took
}

func newFlow() *tunnel.Flow {
	f := tunnel.NewFlow("tcp", "db.prod.svc:5432")
	f.Front, f.Hop, f.Resolved, f.Origin.Server = "link", tunnel.Hop{Role: "direct"}, "10.0.0.7:5432", "server-1"
	return f
}

// dial is what a Forwarder does with a Tracer.
func dial(e *Exporter, f *tunnel.Flow, took time.Duration, err error) {
	e.Trace(f)
	e.Dialed(f, took, err)
}

// counted wants the metric to have these values.
func counted(t *testing.T, registry *prometheus.Registry, dropped, sent int) {
	t.Helper()
	want := fmt.Sprintf(`# HELP konnectivity_trace_spans_total Spans of dials, by whether a collector has taken them.
# TYPE konnectivity_trace_spans_total counter
konnectivity_trace_spans_total{result="dropped"} %d
konnectivity_trace_spans_total{result="sent"} %d
`, dropped, sent)
	testutil.Succeeds(t, promtest.GatherAndCompare(registry, strings.NewReader(want)), "spans")
	testutil.DocumentedLabels(t, "../../docs/metrics.md", "Traces").Check(t, "", testutil.Must(registry.Gather())(t))
}

// What waits when a process ends is sent, with all that is known of a dial.
func TestSpans(t *testing.T) {
	c := newCollector(t)
	e, said, registry := newExporter(t, c.URL, 1)
	f := newFlow()
	f.ID = "4bf92f3577b34da6a3ce929d0e0e4736"
	f.Span.Parent = 0xf067aa0ba902b7
	f.Far = &net.TCPAddr{IP: net.IPv4(10, 0, 0, 8), Port: 5432} // of two that the name has
	dial(e, f, 2*time.Second, nil)
	next := f.To("10.0.0.7:5432")
	testutil.Holds(t, f.Span.ID != 0 && next.Span == f.Span, "the next hop is told %+v of %+v", next.Span, f.Span)
	dial(e, newFlow(), time.Second, &tunnel.DialError{Failure: tunnel.FailRefused, Reason: "nobody listens"})
	again := newFlow()
	again.Resume = &tunnel.Resume{Epoch: 1}
	dial(e, again, time.Second, nil) // is no dial of a new connection
	end(t, e)
	spans := c.got()
	testutil.Requires(t, len(spans) == 2 && said.String() == "", "%+v, %s", spans, said)
	good, bad := spans[0], spans[1]
	attributes := map[string]string{}
	for _, a := range good.Attributes {
		attributes[a.Key] = a.Value.Text
		testutil.Holds(t, a.Key != "server.port" || a.Value.Number == 5432, "port %d", a.Value.Number)
	}
	if good.Trace != f.ID || good.ID != fmt.Sprintf("%016x", f.Span.ID) || good.Parent != "00f067aa0ba902b7" || good.End-good.Start != int64(2*time.Second) || good.Status.Code != 0 ||
		attributes["server.address"] != "db.prod.svc" || attributes["konnectivity.previous"] != "server-1" || attributes["konnectivity.resolved"] != "10.0.0.8:5432" {
		t.Errorf("%+v", good)
	}
	testutil.Holds(t, bad.Status.Code == statusError && strings.Contains(bad.Status.Message, "nobody listens") &&
		good.ID != bad.ID && bad.Parent == "" && good.Trace != bad.Trace, "%+v", bad)
	counted(t, registry, 0, 2)
}

// By CONNECT it is not known which address a name has.
func TestSpanOfANameByCONNECT(t *testing.T) {
	f := newFlow()
	f.Far, f.Resolved = tunnel.Addr{Net: "tcp", Text: f.Address}, ""
	for _, a := range spanOf(f, time.Now(), time.Second, nil).Attributes {
		testutil.Holds(t, a.Key != "konnectivity.resolved", "%q was dialed", a.Value.Text)
	}
}

// A collector that is gone costs spans, one line in the log, and no time of a dial.
func TestCollectorIsGone(t *testing.T) {
	e, said, registry := newExporter(t, "http://"+testutil.Refusing(t), 1)
	for range queueMax + 7 {
		dial(e, newFlow(), 0, nil)
	}
	counted(t, registry, 7, 0)
	end(t, e)
	counted(t, registry, queueMax+7, 0)
	testutil.Holds(t, strings.Count(said.String(), "\n") == 1 && strings.Contains(said.String(), "level=warning"),
		"%v", said)
}

// Spans that a collector refuses are counted as dropped. The log says when it takes some again.
func TestCollectorRefuses(t *testing.T) {
	c := newCollector(t)
	e, said, registry := newExporter(t, c.URL, 1)
	send := func(n int) {
		for range n {
			dial(e, newFlow(), 0, nil)
		}
		end(t, e)
	}
	c.answers(http.StatusServiceUnavailable, "")
	send(3)
	counted(t, registry, 3, 0)
	c.answers(http.StatusOK, `{"partialSuccess":{"rejectedSpans":"2","errorMessage":"too old"}}`)
	send(5)
	counted(t, registry, 5, 3)
	text := said.String()
	testutil.Holds(t, strings.Contains(text, "503") && strings.Contains(text, "sent again") && strings.Count(text, "\n") == 2, "%v", text)
}

// silence is a collector that never answers.
type silence struct{}

func (silence) RoundTrip(r *http.Request) (*http.Response, error) {
	<-r.Context().Done()
	return nil, context.Cause(r.Context())
}

// A collector that hangs holds up other spans, and the end of the process, for no longer than
// their bounds.
func TestCollectorHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _, registry := newExporter(t, "http://hangs:4318", 1)
		e.http.Transport = silence{}
		stop := testutil.Start(t, e.Run)
		for dials := range 2 {
			dial(e, newFlow(), 0, nil)
			time.Sleep(batchTime + sendTime)
			synctest.Wait()
			counted(t, registry, dials+1, 0)
		}
		dial(e, newFlow(), 0, nil)
		start := time.Now()
		stop()
		testutil.Equal(t, time.Since(start), flushTime, "it took")
		counted(t, registry, 3, 0)
	})
}

// Processes choose the same traces, as many as the ratio says; 0 is none, and 1 all.
func TestRatio(t *testing.T) {
	for ratio, want := range map[float64][2]int{0: {0, 0}, 0.25: {2200, 2800}, 1: {10000, 10000}} {
		a, _, _ := newExporter(t, "http://a:1", ratio)
		b, _, _ := newExporter(t, "http://b:1", ratio)
		n := 0
		for range 10000 {
			f := newFlow()
			a.Trace(f)
			testutil.Requires(t, (f.Span.ID != 0) == b.chosen(f.ID), "%v: %s is chosen by one", ratio, f.ID)
			if f.Span.ID != 0 {
				n++
			}
		}
		testutil.Between(t, n, want[0], want[1], "%v: chosen of 10000", ratio)
	}
}

// A URL with a password is refused, and not repeated.
func TestEndpoint(t *testing.T) {
	for text, want := range map[string]string{"http://a:4318": "http://a:4318/v1/traces", "https://a/": "https://a/v1/traces", "http://[::1]:1/x": "http://[::1]:1/x"} {
		testutil.Equal(t, testutil.Must(parseEndpoint(text))(t), want, "%s", text)
	}
	for _, text := range []string{"a:4318", "grpc://a:4317", "http://", "http://me:secret@a:1", "http://a?key=secret", "http://a:1:2"} {
		_, err := parseEndpoint(text)
		testutil.Holds(t, err != nil && !strings.Contains(err.Error(), "secret"), "%s: %v", text, err)
	}
	for _, text := range []string{"-0.1", "1.1", "NaN", "half"} {
		testutil.Fails(t, testutil.Err(parseRatio(text)), "ratio %s is accepted", text)
	}
	e, err := New(Options{})
	testutil.Holds(t, e == nil && err == nil, "without an endpoint: %v, %v", e, err)
}

// What a dial costs more.
func BenchmarkDialed(b *testing.B) {
	e := &Exporter{below: 1 << 63, queue: make(chan span, queueMax)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range e.queue {
		}
	}()
	f := newFlow()
	b.ReportAllocs()
	for b.Loop() {
		dial(e, f, time.Second, nil)
	}
	close(e.queue)
	<-done
}

// Bounds are what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/traces.md"
	testutil.Says(t, page, "They wait in a queue of %v, and are sent %v at a time, or after %v s. A request has %v s.", queueMax, batchMax, int64(batchTime/time.Second), int64(sendTime/time.Second))
	testutil.Says(t, page, "takes at most %v s for the rest", int64(flushTime/time.Second))
	testutil.Says(t, page, "A text has at most %v bytes", maxText)
}
