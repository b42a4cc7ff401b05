package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"go.uber.org/goleak"

	"konnectivity/internal/resources"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// get asks handler in memory and decodes its answer.
func get[T any](t *testing.T, h http.Handler, url string) (out T) {
	t.Helper()
	w := ask(h, http.MethodGet, url)
	testutil.Requires(t, w.Code == http.StatusOK, "%s: %d %s", url, w.Code, w.Body)
	err := json.Unmarshal(w.Body.Bytes(), &out)
	testutil.Requires(t, err == nil, "%s: %v in %s", url, err, w.Body)
	return out
}

func ask(h http.Handler, method, url string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(method, "http://127.0.0.1:8095"+url, nil))
	return w
}

func mounted(s Source) http.Handler {
	return Handler(http.NewServeMux(), s)
}

// traffic is connections over pipes, seen by a table that runs.
type traffic struct {
	t     *testing.T
	table *Table
	all   sync.WaitGroup
}

// open makes a connection and returns its two outer ends.
func (tr *traffic) open(flow *tunnel.Flow) (client, target net.Conn) {
	client, near := net.Pipe()
	far, target := net.Pipe()
	f := &tunnel.Forwarder{Observers: []tunnel.Observer{tr.table}, Dialer: tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		f.Hop = tunnel.Hop{Role: "agent", ID: "a1"}
		return tunnel.Wrap(far), nil
	})}
	tr.all.Go(func() {
		_ = tunnel.Forward(context.Background(), f, flow, func(tunnel.Conn, error) (tunnel.Conn, error) { return tunnel.Wrap(near), nil })
	})
	return client, target
}

// bubble runs f in fake time with a table whose clock runs.
func bubble(t *testing.T, f func(tr *traffic, h http.Handler)) {
	synctest.Test(t, func(t *testing.T) {
		tr := &traffic{t: t, table: NewTable()}
		stop := testutil.Start(t, tr.table.Run)
		f(tr, mounted(Source{Component: "test", ID: "me", Table: tr.table}))
		tr.all.Wait()
		stop()
	})
}

func TestStallShowsWithinTwoSamples(t *testing.T) {
	bubble(t, func(tr *traffic, h http.Handler) {
		client, target := tr.open(&tunnel.Flow{Request: tunnel.Request{ID: "one", Front: "socks5", Network: "tcp", Address: "a.test:443", Source: tunnel.Addr{Text: "10.0.0.1:5"}}})
		defer client.Close()
		_, _ = client.Write([]byte("hello"))
		_, _ = io.ReadFull(target, make([]byte, 5))
		time.Sleep(5 * time.Second)
		c := get[Page[Connection]](t, h, "/api/v1/connections").Items[0]
		testutil.Requires(t, c.State == StateIdle && c.ID == "one" && c.Source == "10.0.0.1:5" && c.Next == "agent a1" &&
			c.UpBytes == 5 && c.Resolved == "pipe", "%+v", c)
		_, _ = client.Write([]byte("nobody reads this"))
		time.Sleep(2*sampleEvery + time.Millisecond)
		c = get[Page[Connection]](t, h, "/api/v1/connections?state=stalled").Items[0]
		testutil.Requires(t, c.State == StateStalled && c.StalledBy == "destination" && c.StalledFor >= 0.3 &&
			c.StalledFor <= 1, "%+v", c)
		if s := get[Status](t, h, "/api/v1/status"); s.Connections.Stalled != 1 || s.Connections.Open != 1 || s.Connections.Total != 1 {
			t.Errorf("%+v", s.Connections)
		}
		_, _ = io.ReadFull(target, make([]byte, 17))
		time.Sleep(sampleEvery + time.Millisecond)
		c = get[Page[Connection]](t, h, "/api/v1/connections").Items[0]
		testutil.Holds(t, c.State == StateActive && c.Up != 0, "read again, and yet %+v", c)
		testutil.Equal(t, get[Status](t, h, "/api/v1/status").Rates.Up, c.Up,
			"the rate of the whole, beside that of its only part")
		// The other side.
		tr.all.Go(func() { _, _ = target.Write([]byte("answer")) })
		time.Sleep(2*sampleEvery + time.Millisecond)
		c = get[Page[Connection]](t, h, "/api/v1/connections").Items[0]
		testutil.Equal(t, c.StalledBy, "client", "%+v", c)
		client.Close()
		target.Close()
		tr.all.Wait()
		time.Sleep(sampleEvery) // answers are shared until the next look
		p := get[Page[Connection]](t, h, "/api/v1/connections")
		testutil.Holds(t, p.Total == 0 && p.Items != nil, "%+v", p)
	})
}

func TestListsArePagedFilteredAndSorted(t *testing.T) {
	table := NewTable()
	const many = 10000
	for i := range many {
		table.Opened(&tunnel.Flow{Request: tunnel.Request{ID: fmt.Sprintf("id-%05d", i), Front: "link", Address: fmt.Sprintf("host-%d.test:443", i%100)}})
	}
	table.sample(time.Now(), sampleEvery)
	h := mounted(Source{Table: table})
	p := get[Page[Connection]](t, h, "/api/v1/connections?limit=1000&offset=9500")
	testutil.Requires(t, p.Total == many && p.Matched == many && len(p.Items) == 500 && p.Items[0].ID == "id-09500",
		"%d %d %d", p.Total, p.Matched, len(p.Items))
	p = get[Page[Connection]](t, h, "/api/v1/connections?filter=HOST-7.test&sort=-id")
	testutil.Requires(t, p.Matched == 100 && p.Items[0].ID == "id-09907" && p.Items[99].ID == "id-00007",
		"%d %s", p.Matched, p.Items[0].ID)
	for name := range orders {
		get[Page[Connection]](t, h, "/api/v1/connections?limit=1&sort=-"+name)
	}
	start := resources.CPUTime()
	get[Page[Connection]](t, h, "/api/v1/connections?sort=destination")
	if took := resources.CPUTime() - start; took > 10*time.Second { // some 10 ms
		t.Errorf("a sorted page of %d took %v of processor time", many, took)
	}
	for _, bad := range []string{"limit=1001", "limit=-1", "limit=x", "offset=-1", "sort=evil", "state=odd", "filter=" + strings.Repeat("x", maxFilter+1),
		"role=agents", "role=agent,", "role=" + strings.Repeat("agent,", len(roles)) + "agent", "filter=%zz", "limit=1;offset=2"} {
		if w := ask(h, http.MethodGet, "/api/v1/connections?"+bad); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), "want") {
			t.Errorf("%s: %d %s", bad, w.Code, w.Body)
		}
	}
}

func TestFailuresHaveHintsAndNoSecrets(t *testing.T) {
	table := NewTable()
	h := mounted(Source{Table: table})
	secret := errors.New("proxy http://user:hunter2@10.0.0.9 said no")
	for i := range 300 {
		table.Dialed(&tunnel.Flow{Request: tunnel.Request{ID: fmt.Sprint("r", i), Address: "a.test:1"}}, time.Second, &tunnel.DialError{Failure: tunnel.FailDenied, Err: secret})
	}
	table.Dialed(&tunnel.Flow{Request: tunnel.Request{ID: "odd", Address: "a.test:1"}}, time.Second, &tunnel.DialError{Failure: 999})
	table.Dialed(&tunnel.Flow{Request: tunnel.Request{ID: "left", Address: "a.test:1"}}, cancelledAfter-1, &tunnel.ResetError{Code: tunnel.CodeCancelled})
	before := table.failures.n
	table.Dialed(&tunnel.Flow{Request: tunnel.Request{ID: "waited", Address: "a.test:1"}}, cancelledAfter, context.Canceled)
	testutil.Equal(t, table.failures.n, before+1, "a client that waited in vain does not show")
	for code, shown := range map[tunnel.Code]bool{tunnel.CodeLost: true, tunnel.CodePeerReset: false, tunnel.CodeCancelled: false} {
		before = table.failures.n
		table.Closed(&tunnel.Flow{}, time.Second, &tunnel.ResetError{Code: code})
		testutil.Equal(t, table.failures.n > before, shown, "%v is shown", code)
	}
	p := get[Page[Failure]](t, h, "/api/v1/failures?limit=1000")
	testutil.Requires(t, len(p.Items) == KeptFailures && p.Items[0].Failure == "lost" && p.Items[0].Hint != "",
		"%d, newest %+v", len(p.Items), p.Items[0])
	if f := p.Items[3]; f.ID != "r299" || f.Stage != "dial" || f.Failure != "denied" || f.Cause != "destination not allowed" || f.Hint == "" || f.Seconds != 1 {
		t.Errorf("%+v", f)
	}
	s := get[Status](t, h, "/api/v1/status")
	testutil.Holds(t, s.Dials.Total == 303 && s.Dials.Failed == 303 && s.Dials.Failures["denied"] == 300 &&
		s.Dials.Failures["cancelled"] == 2 && s.Dials.Failures["internal"] == 1, "%+v", s.Dials)
	for _, url := range []string{"failures", "status", "connections", "peers", "history"} {
		testutil.Holds(t, !strings.Contains(ask(h, http.MethodGet, "/api/v1/"+url).Body.String(), "hunter2"),
			"%s tells a password", url)
	}
}

func TestEveryFailureHasAHint(t *testing.T) {
	for f := range tunnel.Failures() {
		testutil.Holds(t, Hint(f) != "", "%v has no hint", f)
	}
	// Resets by either end, cancelled dials, and resets without a reason are ordinary.
	ordinary := []tunnel.Code{tunnel.CodeUnknown, tunnel.CodePeerReset, tunnel.CodeCancelled}
	for code := range tunnel.Codes() {
		testutil.Holds(t, resetHints[code] != "" || slices.Contains(ordinary, code), "%v has no hint", code)
	}
}

func TestHistoryIsARingOfFifteenMinutes(t *testing.T) {
	bubble(t, func(tr *traffic, h http.Handler) {
		tr.table.Dialed(&tunnel.Flow{}, 100*time.Millisecond, nil)
		tr.table.Dialed(&tunnel.Flow{}, 300*time.Millisecond, nil)
		time.Sleep(interval + sampleEvery)
		hist := get[History](t, h, "/api/v1/history")
		if p := hist.Points[0]; hist.Interval != 5 || len(hist.Points) != 1 || p.DialSeconds != 0.2 || p.DialMax != 0.3 || p.Dials < 0.35 || p.Dials > 0.4 {
			t.Fatalf("%+v", hist)
		}
		time.Sleep(20 * time.Minute)
		hist = get[History](t, h, "/api/v1/history")
		n := len(hist.Points)
		testutil.Requires(t, n == points, "%d points", n)
		for i := 1; i < points; i++ {
			testutil.Requires(t, hist.Points[i].Time.After(hist.Points[i-1].Time.Time), "out of order at %d", i)
		}
	})
}

// A byte that a sample counts twice is missing in those after it.
func TestSamplesCountNoByteTwice(t *testing.T) {
	const each = 1 << 20
	table := NewTable()
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	var closing sync.WaitGroup
	defer closing.Wait()
	for range 4 {
		closing.Go(func() {
			for ctx.Err() == nil {
				f := &tunnel.Flow{Request: tunnel.Request{Address: "a.test:1"}, Opened: time.Now()}
				table.Opened(f)
				f.Carry(true, each)
				table.Closed(f, 0, nil)
			}
		})
	}
	for ctx.Err() == nil {
		up, most := table.sample(time.Now(), sampleEvery)[0], int64(table.number.Load())*each
		testutil.Requires(t, up <= most, "%d bytes up, of %d at most", up, most)
	}
}

// A clock need not have moved between two samples, as that of Windows has not for milliseconds.
func TestSamplesOfOneMoment(t *testing.T) {
	table := NewTable()
	table.Opened(&tunnel.Flow{Request: tunnel.Request{Address: "a.test:1"}, Opened: time.Now()})
	table.sample(time.Now(), 0)
	p := get[Page[Connection]](t, mounted(Source{Table: table}), "/api/v1/connections")
	testutil.Holds(t, p.Matched == 1 && p.Items[0].Up == 0, "%+v", p)
}

func TestPeersHaveTheRatesOfTheirConnections(t *testing.T) {
	table := NewTable()
	table.sums.Store(&sums{byNext: map[hop]load{{"", tunnel.Hop{Role: "agent", ID: "a1"}}: {up: 1, down: 2, stalled: 3}}, bySource: map[origin]load{{"", "10.0.0.7:1"}: {up: 4, down: 5, stalled: 6}, {"red", "10.0.0.7:1"}: {up: 7}}})
	h := mounted(Source{Table: table, Peers: func() []Peer {
		return []Peer{{Role: RoleAgent, ID: "a1"}, {Role: RoleClient, ID: "c", Remote: "10.0.0.7:1"}, {Role: RoleAgent, ID: "a2"}}
	}})
	p := get[Page[Peer]](t, h, "/api/v1/peers")
	testutil.Holds(t, len(p.Items) == 3 && p.Items[0].Up == 1 && p.Items[1].Down == 5 && p.Items[1].Stalled == 6 &&
		p.Items[2].Up == 0, "%+v", p.Items)
	p = get[Page[Peer]](t, h, "/api/v1/peers?sort=-rate&limit=1")
	testutil.Holds(t, p.Total == 3 && len(p.Items) == 1 && p.Items[0].ID == "c", "%+v", p)
	p = get[Page[Peer]](t, h, "/api/v1/peers?role=client")
	testutil.Holds(t, p.Matched == 1 && p.Items[0].ID == "c", "%+v", p)
	p = get[Page[Peer]](t, h, "/api/v1/peers?filter=A2")
	testutil.Holds(t, p.Matched == 1 && p.Items[0].ID == "a2", "%+v", p)
}

// A peer's name could control the terminal that shows an answer.
func TestAnswersHaveNoInvisibleCharacters(t *testing.T) {
	id := "a\u009b2Jb\x7f\u202e\U000e0041\x1bé"
	h := mounted(Source{Table: NewTable(), Peers: func() []Peer { return []Peer{{Role: RoleAgent, ID: id}} }})
	body := ask(h, "GET", "/api/v1/peers").Body.String()
	if at := strings.IndexFunc(body, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); at >= 0 {
		t.Errorf("a terminal would read %q", body[at:])
	}
	testutil.Equal(t, get[Page[Peer]](t, h, "/api/v1/peers").Items[0].ID, id, "the id")
}

// An agent may list a server by gRPC whose id has 4096 bytes; all other ids have 512 at most.
// The page takes any filter that it lets one type for an answer, and no more.
func TestFiltersHoldTheLongestID(t *testing.T) {
	id := strings.Repeat("a", 4096)
	h := mounted(Source{Table: NewTable(), Peers: func() []Peer { return []Peer{{Role: RoleAgent, ID: id}, {Role: RoleAgent, ID: "b"}} }})
	testutil.Equal(t, get[Page[Peer]](t, h, "/api/v1/peers?filter="+id).Matched, 1, "peers")
	bounds := regexp.MustCompile(`type="search"[^>]* maxlength="(\d+)"`).FindAllStringSubmatch(ask(h, "GET", "/").Body.String(), -1)
	for _, b := range bounds {
		if n, err := strconv.Atoi(b[1]); err != nil || n < len("agent ")+512 || n*len("€") > maxFilter {
			t.Errorf("a filter on the page may have %s characters, and one of the API %d bytes", b[1], maxFilter)
		}
	}
	testutil.Equal(t, len(bounds), 2, "filters on the page")
}

func TestPageLoadsOwnFilesOnly(t *testing.T) {
	h := mounted(Source{Table: NewTable()})
	urls := map[string]string{"/": "text/html", "/page.css": "text/css", "/icon.svg": "image/svg+xml"}
	for _, part := range []string{"page", "words", "tiles", "topology", "connections", "detail", "failures"} {
		urls["/"+part+".js"] = "text/javascript"
	}
	for url, kind := range urls {
		w := ask(h, "GET", url)
		body := strings.ReplaceAll(w.Body.String(), "http://www.w3.org/2000/svg", "")
		testutil.Holds(t, w.Code == 200 && strings.HasPrefix(w.Header().Get("Content-Type"), kind) && len(body) >= 100,
			"%s: %d %v, %d bytes", url, w.Code, w.Header(), len(body))
		testutil.Holds(t, w.Header().Get("Content-Security-Policy") == policy &&
			w.Header().Get("X-Content-Type-Options") == "nosniff", "%s: %v", url, w.Header())
		for _, bad := range []string{"http://", "https://", "<style", " style=", " onclick=", "innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("} {
			testutil.Holds(t, !strings.Contains(body, bad), "%s has %q", url, bad)
		}
	}
	testutil.Equal(t, ask(h, "GET", "/other").Code, 404, "/other")
	if w := ask(h, "GET", "/api/v2/status"); w.Code != 404 || !strings.Contains(w.Body.String(), "/api/v1/") {
		t.Errorf("another version: %d %s", w.Code, w.Body)
	}
}

// BenchmarkSample is one look at 10,000 connections.
func BenchmarkSample(b *testing.B) {
	table := NewTable()
	for i := range 10000 {
		table.Opened(&tunnel.Flow{Request: tunnel.Request{ID: fmt.Sprint(i), Front: "socks5", Address: "a.test:1"}, Result: tunnel.Result{Hop: tunnel.Hop{Role: "server", ID: "s"}}})
	}
	for b.Loop() {
		table.sample(time.Now(), sampleEvery)
	}
}

// The status tells which files cannot be used.
func TestTroublesAreShown(t *testing.T) {
	h := mounted(Source{Table: NewTable(), Audit: func() string { return "full" }, Policy: func() string { return "wrong" }})
	s := get[Status](t, h, "/api/v1/status")
	testutil.Holds(t, s.AuditError == "full" && s.PolicyError == "wrong", "%+v", s)
}
