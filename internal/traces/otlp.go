package traces

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"konnectivity/internal/version"
	"konnectivity/tunnel"
)

// What follows is OTLP's JSON (opentelemetry-proto, docs/specification.md): ids are hex
// digits, and numbers of 64 bits are texts.

type request struct {
	ResourceSpans []resourceSpans `json:"resourceSpans"`
}

type resourceSpans struct {
	Resource   resource     `json:"resource"`
	ScopeSpans []scopeSpans `json:"scopeSpans"`
}

type resource struct {
	Attributes []attribute `json:"attributes"`
}

type scopeSpans struct {
	Scope struct {
		Name string `json:"name"`
	} `json:"scope"`
	Spans []span `json:"spans"`
}

type span struct {
	Trace      string      `json:"traceId"`
	ID         string      `json:"spanId"`
	Parent     string      `json:"parentSpanId,omitempty"`
	Name       string      `json:"name"`
	Kind       int         `json:"kind"`
	Start      int64       `json:"startTimeUnixNano,string"`
	End        int64       `json:"endTimeUnixNano,string"`
	Attributes []attribute `json:"attributes"`
	Status     status      `json:"status"`
}

type status struct {
	Code    int    `json:"code,omitempty"`
	Message string `json:"message,omitempty"`
}

type attribute struct {
	Key   string `json:"key"`
	Value value  `json:"value"`
}

type value struct {
	Text   string `json:"stringValue,omitempty"`
	Number int64  `json:"intValue,string,omitempty"`
}

const (
	kindClient  = 3 // SPAN_KIND_CLIENT: the process asks another one
	statusError = 2 // STATUS_CODE_ERROR
)

// maxText bounds a text, in bytes.
const maxText = 1024

// attributes are those of the texts that are not empty: name, value, name, value.
func attributes(texts ...string) []attribute {
	all := make([]attribute, 0, len(texts)/2+1) // and one more of another kind
	for i := 0; i < len(texts); i += 2 {
		if text := texts[i+1]; text != "" {
			all = append(all, attribute{texts[i], value{Text: text[:min(len(text), maxText)]}})
		}
	}
	return all
}

func resourceOf(component, name string) resource {
	return resource{attributes("service.name", component, "service.instance.id", name, "service.version", version.Get().Version)}
}

// reached is the address that was dialed; "" if it is unknown. By CONNECT, Far is the destination
// of the request, perhaps a name.
func reached(f *tunnel.Flow) string {
	if at, isTCP := f.Far.(*net.TCPAddr); f.Far == nil || isTCP && at == nil {
		return f.Resolved
	}
	if _, err := netip.ParseAddrPort(f.Far.String()); err != nil {
		return f.Resolved
	}
	return f.Far.String()
}

// spanOf is the span of a dial that has just ended.
func spanOf(f *tunnel.Flow, now time.Time, took time.Duration, err error) span {
	s := span{
		Trace: tunnel.TraceID(f.ID), ID: spanID(f.Span.ID), Parent: spanID(f.Span.Parent), Name: "dial", Kind: kindClient,
		Start: now.Add(-took).UnixNano(), End: now.UnixNano(),
	}
	host, port, _ := tunnel.SplitAddress(f.Address)
	failure := ""
	if err != nil {
		dial := tunnel.AsDialError(f.Address, err)
		failure = dial.Failure.Label()
		message := dial.Text()
		s.Status = status{statusError, message[:min(len(message), maxText)]}
	}
	s.Attributes = attributes("server.address", host, "error.type", failure, "konnectivity.id", f.ID, "konnectivity.tenant", f.Tenant(),
		"konnectivity.front", f.Front, "konnectivity.previous", f.Origin.Server, "konnectivity.route", string(f.Route),
		"konnectivity.next.role", f.Hop.Role, "konnectivity.next.id", f.Hop.ID, "konnectivity.resolved", reached(f))
	if port != 0 {
		s.Attributes = append(s.Attributes, attribute{"server.port", value{Number: int64(port)}})
	}
	return s
}

// spanID is the id as OTLP writes it; "" for none.
func spanID(id uint64) string {
	if id == 0 {
		return ""
	}
	return fmt.Sprintf("%016x", id)
}

// post sends a batch, and returns how many spans the collector has refused.
func (e *Exporter) post(ctx context.Context, batch []span) (refused int, err error) {
	all := scopeSpans{Spans: batch}
	all.Scope.Name = "konnectivity"
	body, err := json.Marshal(request{[]resourceSpans{{e.process, []scopeSpans{all}}}})
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, e.endpoint, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := e.http.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	if answer.StatusCode/100 != 2 {
		return 0, fmt.Errorf("the collector answers %s", answer.Status)
	}
	var partial struct {
		PartialSuccess struct{ RejectedSpans json.Number }
	}
	_ = json.Unmarshal(text, &partial) // an answer in another form refuses nothing
	n, _ := strconv.Atoi(partial.PartialSuccess.RejectedSpans.String())
	return min(max(n, 0), len(batch)), nil
}
