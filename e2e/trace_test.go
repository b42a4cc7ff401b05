package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// traced is a suite whose programs tell everything, and have admin ports.
type traced struct {
	*whole
	httpsAt, health string // the HTTPS sidecar's admin and health ports
	chain           func(trace, parent string) []otlpSpan
}

func newTraced(t *testing.T, link string) *traced {
	t.Helper()
	w := &traced{httpsAt: testutil.ReservedAddress(t), health: testutil.ReservedAddress(t)}
	collector, chain := collect(t)
	w.chain = chain
	all := []string{"--log-level=debug", "--audit-log=-", "--traces-endpoint=" + collector}
	linked := append(slices.Clone(all), "--link="+link)
	w.whole = newWholeOf(t, flags{
		server: append(slices.Clone(all), "--server-id=server-1", "--deny-destination=denied.example"), agent: append(slices.Clone(linked), "--agent-id=agent-1"),
		sidecars: linked, https: []string{"--admin-address=" + w.httpsAt, "--health-address=" + w.health},
	})
	return w
}

// clientSpan is that of clients that send a traceparent.
const clientSpan = "00f067aa0ba902b7"

func traceparent(id string) (header string) {
	return "traceparent: 00-" + id + "-" + clientSpan + "-01\r\n"
}

// idsOf are the ids of all lines of a log with a message, which audit records have not; "" is any.
func idsOf(p *suite.Process, message string) (ids []string) {
	for line := range strings.Lines(p.Output()) {
		var fields struct{ ID, Msg string }
		if json.Unmarshal([]byte(line), &fields) == nil && fields.Msg != "" && (message == "" || fields.Msg == message) && fields.ID != "" {
			ids = append(ids, fields.ID)
		}
	}
	return ids
}

// logs waits until every process has a line with the id.
func (w *traced) logs(t *testing.T, id string, all ...*suite.Process) {
	t.Helper()
	for _, p := range all {
		eventually(t, patience, fmt.Sprintf("a line of %s with the id %s", p.Name, id), func() (bool, any) {
			return slices.Contains(idsOf(p, ""), id), "\n" + p.Output()
		})
	}
}

// shown wants konnectivity status to show one connection at every hop.
func (w *traced) shown(t *testing.T, id string, at ...string) {
	t.Helper()
	eventually(t, patience, "status of every hop has "+id, func() (bool, any) {
		out, err := command(t, nil, w.Bin.Path("konnectivity"), append([]string{"status", "--filter=" + id}, at...)...)
		return err == nil && strings.Count(out, id) >= len(at), "\n" + out
	})
}

// otherFronts has connections come by the other fronts, beside a known one.
func (w *traced) otherFronts(t *testing.T, target, known string) {
	t.Helper()
	// The SOCKS5 sidecar makes the id, since SOCKS5 has no room for one.
	testutil.NoError(t, echoOnce(viaSOCKS5(w.socks.Address()), target).err)
	made := ""
	eventually(t, patience, "a line of the SOCKS5 sidecar", func() (bool, any) {
		ids := idsOf(w.socks.Process, "connection ended")
		if len(ids) > 0 {
			made = ids[0]
		}
		return made != "", w.socks.Output()
	})
	w.logs(t, made, w.socks.Process, w.server.Process, w.agent.Process)
	// kube-apiserver's CONNECT may have a trace.
	const direct = "0af7651916cd43dd8448eb211c80319d"
	uds := must(net.Dial("unix", w.server.UDS))(t)
	testutil.NoError(t, connect(uds, target, traceparent(direct)))
	uds.Close()
	w.logs(t, direct, w.server.Process, w.agent.Process)
	// kube-apiserver's gRPC: the server makes it.
	testutil.NoError(t, try(t, viaGRPC(w.server.UDS), target))
	eventually(t, patience, "the agent knows the server's id", func() (bool, any) {
		ids := idsOf(w.server.Process, "connection ended")
		ids = slices.DeleteFunc(ids, func(id string) bool {
			return slices.Contains([]string{known, made, direct}, id) || !slices.Contains(idsOf(w.agent.Process, ""), id)
		})
		return len(ids) > 0, w.server.Output()
	})
}

// otlpSpan is the span of a dial, as a collector receives it.
type otlpSpan struct {
	service string

	TraceID, SpanID, ParentSpanID string

	Attributes []struct {
		Key   string
		Value struct{ StringValue string }
	}
	Status struct {
		Code    int
		Message string
	}
}

func (s otlpSpan) attribute(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.StringValue
		}
	}
	return ""
}

// collect starts a collector, and returns its URL, and what returns the spans so far of a
// trace: one whose parent is the client's span, the one whose parent is that, and so on.
func collect(t *testing.T) (address string, chain func(trace, parent string) []otlpSpan) {
	t.Helper()
	var mu sync.Mutex
	var spans []otlpSpan
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		var body struct {
			ResourceSpans []struct {
				Resource   otlpSpan
				ScopeSpans []struct{ Spans []otlpSpan }
			}
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		for _, all := range body.ResourceSpans {
			for _, span := range all.ScopeSpans[0].Spans {
				span.service = all.Resource.attribute("service.name")
				spans = append(spans, span)
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func(trace, parent string) (chain []otlpSpan) {
		mu.Lock()
		defer mu.Unlock()
		for {
			i := slices.IndexFunc(spans, func(s otlpSpan) bool { return s.TraceID == trace && s.ParentSpanID == parent })
			if i < 0 {
				return chain
			}
			chain, parent = append(chain, spans[i]), spans[i].SpanID
		}
	}
}

// chained waits until there is a span of each service for a client's trace, each the parent of
// the next.
func chained(t *testing.T, trace string, chain func(trace, parent string) []otlpSpan, services ...string) (got []otlpSpan) {
	t.Helper()
	eventually(t, patience, "a span of each hop, with that of the hop before as its parent", func() (bool, any) {
		got = chain(trace, clientSpan)
		return slices.EqualFunc(got, services, func(s otlpSpan, service string) bool { return s.service == service }), got
	})
	return got
}

// dialTraced dials a target, which may refuse, through an HTTP proxy as a client with a trace-id.
func dialTraced(t *testing.T, proxy, target, trace string) {
	t.Helper()
	c := must(net.Dial("tcp", proxy))(t)
	defer c.Close()
	_ = connect(c, target, traceparent(trace))
}

// exemplars are the trace-ids that the dial histograms of a process have, as Prometheus asks
// for its metrics where it wants exemplars.
func exemplars(t *testing.T, address string) (traces []string) {
	t.Helper()
	r := must(http.NewRequest(http.MethodGet, address, nil))(t)
	r.Header.Set("Accept", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	answer := must(http.DefaultClient.Do(r))(t)
	defer answer.Body.Close()
	for all := expfmt.NewDecoder(answer.Body, expfmt.ResponseFormat(answer.Header)); ; {
		var family dto.MetricFamily
		if err := all.Decode(&family); err == io.EOF {
			return traces
		} else if err != nil {
			t.Fatal(err)
		}
		for _, m := range family.Metric {
			for _, bucket := range m.GetHistogram().GetBucket() {
				for _, l := range bucket.GetExemplar().GetLabel() {
					if !strings.HasSuffix(family.GetName(), "_dial_duration_seconds") || l.GetName() != "trace_id" {
						t.Errorf("%s has an exemplar with %s", family.GetName(), l)
					}
					traces = append(traces, l.GetValue())
				}
			}
		}
	}
}

// spans checks that each hop of the only dial so far has sent a span, and each of another, which
// fails, one with the reason. Histograms of dials lead to the dial that has succeeded.
func (w *traced) spans(t *testing.T, good string) {
	t.Helper()
	const bad = "4bf92f3577b34da6a3ce929d0e0e4737"
	services := []string{"konnectivity-https-proxy", "konnectivity-server", "konnectivity-agent"}
	got := chained(t, good, w.chain, services...)
	if got[0].attribute("konnectivity.route") != "tunnel" || got[1].attribute("konnectivity.next.id") != "agent-1" ||
		got[2].attribute("server.address") != "127.0.0.1" {
		t.Errorf("%+v", got)
	}
	dialTraced(t, w.https.Address(), testutil.Refusing(t), bad)
	for i, span := range chained(t, bad, w.chain, services...) {
		testutil.Holds(t, got[i].Status.Code == 0 && span.Status.Code == 2 && span.attribute("error.type") == "refused", "%+v", span)
	}
	for _, of := range []string{"http://" + w.health + "/metrics", w.server.HealthURL("/metrics"), w.agent.HealthURL("/metrics")} {
		testutil.EqualSlices(t, exemplars(t, of), []string{good}, "exemplars of %s", of)
	}
}

// The span of a server that dials by another one is the parent of that one's.
func TestSpansThroughAnotherServer(t *testing.T) {
	t.Parallel()
	address, chain := collect(t)
	to := "--traces-endpoint=" + address
	c := newCrewOf(t, newSuite(t), func(_ int, all []string) []string {
		return []string{to, "--peer-servers=" + strings.Join(all, ",")}
	})
	sidecar := must(c.StartHTTPS(c.servers[0], to))(t)
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	dialTraced(t, sidecar.Address(), c.targets[1], trace)
	chained(t, trace, chain, "konnectivity-https-proxy", "konnectivity-server", "konnectivity-server")
}
