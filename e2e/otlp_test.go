package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	"konnectivity/internal/testutil"
)

// otlpSpan is the span of a dial, as a collector receives it.
type otlpSpan struct {
	TraceID    string
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

// collect starts a collector, and returns its URL and the spans so far of a trace, by service.
func collect(t *testing.T) (address string, of func(trace string) map[string]otlpSpan) {
	t.Helper()
	var mu sync.Mutex
	traces := map[string]map[string]otlpSpan{}
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
				if traces[span.TraceID] == nil {
					traces[span.TraceID] = map[string]otlpSpan{}
				}
				traces[span.TraceID][all.Resource.attribute("service.name")] = span
			}
		}
	}))
	t.Cleanup(s.Close)
	return s.URL, func(trace string) map[string]otlpSpan {
		mu.Lock()
		defer mu.Unlock()
		copied := map[string]otlpSpan{}
		for service, span := range traces[trace] {
			copied[service] = span
		}
		return copied
	}
}

// Each hop of a dial sends a span of one trace, which is that of the client's traceparent;
// those of a failed dial say why.
func TestSpansOfEveryHop(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"auto", "off"} {
		t.Run("link "+mode, func(t *testing.T) {
			address, of := collect(t)
			w := &whole{Suite: newSuite(t)}
			to, link := "--traces-endpoint="+address, "--link="+mode
			w.server = must(w.StartServer(to, "--server-id=server-1"))(t)
			w.agent = must(w.StartAgent(w.server, to, link, "--agent-id=agent-1"))(t)
			w.https = must(w.StartHTTPS(w.server, to, link))(t)
			spans := func(trace, target string) map[string]otlpSpan {
				c := must(net.Dial("tcp", w.https.Address()))(t)
				defer c.Close()
				fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\ntraceparent: 00-%s-00f067aa0ba902b7-01\r\n\r\n", target, trace)
				must(io.ReadAtLeast(c, make([]byte, 64), len("HTTP/1.1 200")))(t)
				eventually(t, patience, "a span of each hop", func() (bool, any) { return len(of(trace)) == 3, of(trace) })
				return of(trace)
			}
			const good, bad = "4bf92f3577b34da6a3ce929d0e0e4736", "4bf92f3577b34da6a3ce929d0e0e4737"
			got := spans(good, echoTarget(t))
			if got["konnectivity-https-proxy"].attribute("konnectivity.route") != "tunnel" || got["konnectivity-server"].attribute("konnectivity.next.id") != "agent-1" ||
				got["konnectivity-agent"].attribute("server.address") != "127.0.0.1" {
				t.Errorf("%+v", got)
			}
			for service, span := range spans(bad, testutil.Refusing(t)) {
				if got[service].Status.Code != 0 || span.Status.Code != 2 || span.attribute("error.type") != "refused" {
					t.Errorf("%s: %+v", service, span)
				}
			}
		})
	}
}
