package audit

import (
	"encoding/json"
	"maps"
	"net"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"go.uber.org/goleak"

	"konnectivity/internal/policy"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

var moment = time.Date(2026, 11, 25, 8, 30, 0, 123456000, time.UTC)

// newFlow is a flow with all that a record may tell.
func newFlow() *tunnel.Flow {
	f := tunnel.NewFlow("tcp", "kubelet.example:10250")
	f.ID, f.Front, f.Source = "4bf92f3577b34da6", "connect", &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 40000}
	f.Client = &tunnel.Client{Tenant: "blue", Who: tunnel.NewIdentity("uri:spiffe://example/client", "cn:kube-apiserver")}
	f.Origin, f.Hop, f.Route = tunnel.Origin{Server: "server-0"}, tunnel.Hop{Role: "agent", ID: "node1"}, tunnel.RouteTunnel
	f.Far, f.Opened = tunnel.Addr{Net: "tcp", Text: "10.1.2.3:10250"}, moment
	return f
}

// line is the record of r.
func line(r *record) string {
	return string(appendRecord(nil, appendHead(nil, "konnectivity-server", "server-1"), r))
}

const common = `"component":"konnectivity-server","name":"server-1","id":"4bf92f3577b34da6","tenant":"blue","identity":["uri:spiffe://example/client","cn:kube-apiserver"],` +
	`"front":"connect","source":"10.0.0.7:40000","previous":"server-0","destination":"kubelet.example:10250","resolved":"10.1.2.3:10250","nextRole":"agent","next":"node1","route":"tunnel"`

func TestRecords(t *testing.T) {
	moved := newFlow()
	moved.HandedOver = true
	roamed := newFlow() // by another agent now, which has dialed what it says
	roamed.Resumable, roamed.Far, roamed.Resolved = end{}, nil, "10.1.2.3:10250"
	for want, r := range map[string]record{
		`{"audit":1,"time":"2026-11-25T08:30:00.123456Z","event":"opened",` + common + `}`:                                       {event: opened},
		`{"audit":1,"time":"2026-11-25T08:30:00.123456Z","event":"opened",` + common + `,"resumed":true}`:                        {event: opened, resumed: true},
		`{"audit":1,"time":"2026-11-25T08:30:00.123456Z","event":"opened",` + strings.Replace(common, "node1", "node2", 1) + `}`: {event: opened, flow: roamed},
		`{"audit":1,"time":"2026-11-25T08:30:00.123456Z","event":"refused",` + common + `,"failure":"denied","reason":"not \"here\"","seconds":0.250000}`: {
			event: refused, took: 250 * time.Millisecond, failed: &tunnel.DialError{Failure: tunnel.FailDenied, Reason: `not "here"`, Err: os.ErrPermission}},
		`{"audit":1,"time":"2026-11-25T08:30:00.123456Z","event":"closed",` + common + `,"upBytes":3,"downBytes":4,"end":"complete","seconds":2.000000}`: {
			event: closed, took: 2 * time.Second, up: 3, down: 4},
		`{"audit":1,"time":"2026-11-25T08:30:00.123456Z","event":"closed",` + common + `,"upBytes":0,"downBytes":0,"resumes":2,"end":"lost","loss":"cut","seconds":0.000001}`: {
			event: closed, took: time.Microsecond, resumes: 2, err: tunnel.Lost(tunnel.LossCut)},
		`{"audit":1,"time":"2026-11-25T08:30:00.123456Z","event":"closed",` + common + `,"upBytes":0,"downBytes":0,"end":"handed_over","seconds":0.000000}`: {
			event: closed, flow: moved},
	} {
		r.at = moment
		if r.flow == nil {
			r.flow = newFlow()
		}
		testutil.Equal(t, line(&r), want+"\n", "the record")
	}
}

// A record names the rule that decided: which allowed the connection, or denied it then or
// later.
func TestRecordsNameTheRule(t *testing.T) {
	denial := &tunnel.DialError{Failure: tunnel.FailDenied, Err: &policy.Denial{Rule: "none"}}
	for want, r := range map[string]record{
		"ours":  {event: opened},
		"ours ": {event: closed, err: tunnel.Lost(tunnel.LossCut)},
		"none":  {event: refused, failed: denial},
		"none ": {event: closed, err: &tunnel.ResetError{Code: tunnel.CodePolicy, Err: denial}},
		"":      {event: refused, failed: &tunnel.DialError{Failure: tunnel.FailDenied}},
		" ":     {event: closed, err: &tunnel.ResetError{Code: tunnel.CodePolicy}},
	} {
		r.at, r.flow = moment, newFlow()
		r.flow.Rule = "ours"
		var got struct{ Rule string }
		testutil.NoError(t, json.Unmarshal([]byte(line(&r)), &got))
		testutil.Equal(t, got.Rule, strings.TrimSpace(want), "the rule of %+v", r)
	}
}

// What is not known is left out, and so is the address that was asked for as it is.
func TestRecordsLeaveOutWhatIsNotKnown(t *testing.T) {
	f := tunnel.NewFlow("tcp", "10.1.2.3:80")
	f.ID, f.Far = "1", &net.TCPAddr{IP: net.IPv4(10, 1, 2, 3), Port: 80}
	const want = `{"audit":1,"time":"2026-11-25T08:30:00.123456Z","event":"opened","component":"konnectivity-server","name":"server-1","id":"1","destination":"10.1.2.3:80"}` + "\n"
	testutil.Equal(t, line(&record{event: opened, at: moment, flow: f}), want, "the record")
}

// Records have the fields that the schema has, and no others.
func TestSchema(t *testing.T) {
	var schema struct {
		Properties map[string]struct {
			Type  string
			Const any
			Enum  []string
		}
		Required             []string
		AdditionalProperties *bool
	}
	testutil.NoError(t, json.Unmarshal(testutil.Must(os.ReadFile("../../docs/audit.schema.json"))(t), &schema))
	testutil.Holds(t, schema.AdditionalProperties != nil && !*schema.AdditionalProperties,
		"the schema allows what it does not list")
	seen := map[string]bool{}
	check := func(line string) {
		t.Helper()
		var r map[string]any
		testutil.NoError(t, json.Unmarshal([]byte(line), &r))
		for _, name := range schema.Required {
			_, has := r[name]
			testutil.Holds(t, has, "%s is missing in %s", name, line)
		}
		for name, v := range r {
			seen[name] = true
			p, known := schema.Properties[name]
			kind := map[reflect.Kind]string{reflect.String: "string", reflect.Float64: "number", reflect.Bool: "boolean", reflect.Slice: "array"}[reflect.TypeOf(v).Kind()]
			testutil.Holds(t, known && (p.Type == kind || p.Type == "integer" && kind == "number") &&
				(p.Enum == nil || slices.Contains(p.Enum, v.(string))), "%s: %v is not as in the schema: %+v", name, v, p)
		}
	}
	for _, event := range []string{opened, closed} {
		check(line(&record{event: event, at: moment, flow: newFlow(), resumed: true, resumes: 1, err: tunnel.Lost(tunnel.LossCut)}))
	}
	for code := range tunnel.Codes() {
		check(line(&record{event: closed, at: moment, flow: newFlow(), err: &tunnel.ResetError{Code: code}}))
	}
	for cause := range tunnel.AllLossCauses() {
		check(line(&record{event: closed, at: moment, flow: newFlow(), err: tunnel.Lost(cause)}))
	}
	moved := newFlow()
	moved.HandedOver = true
	check(line(&record{event: closed, at: moment, flow: moved}))
	check(line(&record{event: closed, at: moment, flow: newFlow()}))
	ruled := newFlow()
	ruled.Rule = "apiserver"
	check(line(&record{event: opened, at: moment, flow: ruled}))
	for failure := range tunnel.Failures() {
		check(line(&record{event: refused, at: moment, flow: newFlow(), failed: &tunnel.DialError{Failure: failure}}))
	}
	check(string(appendDropped(nil, appendHead(nil, "konnectivity-agent", "a"), moment, 3)))
	for name := range maps.Keys(schema.Properties) {
		testutil.Holds(t, seen[name], "the schema has %s, and no record has", name)
	}
}

// Whatever a peer calls itself, a record is one line of valid JSON within its bound.
func FuzzRecord(f *testing.F) {
	for _, s := range []string{"", "a", "a\"b\\c", "\x00\x1f\x7f\n\r\t", "ä€😀", "\xff\xc3", "\xed\xa0\x80", "\u2028", "\u009b31m\x7f\u202e\U000e0041", strings.Repeat("ä", 600), strings.Repeat("\x01", 2000)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		flow := newFlow()
		flow.ID, flow.Front, flow.Address, flow.Hop.ID, flow.Route = s, s, s, s, tunnel.Route(s)
		flow.Client = &tunnel.Client{Tenant: s, Who: tunnel.Identity(s[:min(len(s), tunnel.IdentitySize)])}
		flow.Source, flow.Far, flow.Origin.Server = tunnel.Addr{Text: s}, tunnel.Addr{Text: s}, s
		got := line(&record{event: refused, at: moment, flow: flow, failed: &tunnel.DialError{Failure: tunnel.FailDenied, Reason: s}})
		var r struct {
			ID       string
			Identity []string
		}
		err := json.Unmarshal([]byte(got), &r)
		testutil.Requires(t, err == nil, "%v %v", err, got)
		testutil.Holds(t, len(got) <= chunkSize && strings.Count(got, "\n") == 1 && strings.HasSuffix(got, "\n"),
			"%d bytes: %s", len(got), got)
		if at := strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }); at != len(got)-1 { // the line's end
			t.Errorf("a terminal would read %q", got[at:])
		}
		want := string([]rune(s[:min(len(s), maxText)])) // with U+FFFD for bytes that are not UTF-8
		testutil.Holds(t, r.ID == want && len(r.Identity) == len(flow.Who().Names()),
			"%q became %q, of %q", want, r.ID, r.Identity)
	})
}

// A connection's two records are made without an allocation.
func TestRecordAllocs(t *testing.T) {
	l, _ := openLog(t, Stdout)
	f := newFlow()
	testutil.MaxAllocs(t, 0, func() {
		l.Dialed(f, time.Second, nil)
		l.Opened(f)
		l.Closed(f, time.Second, nil)
		l.queue.chunks[0], l.queue.size = l.queue.chunks[0][:0], 0
	})
}
