package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"konnectivity/cmd/konnectivity/internal/status"
	"konnectivity/internal/admin"
	"konnectivity/internal/cli"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// large serves the admin API of a process with that many connections and agents.
func large(t *testing.T, conns, agents int) (address string) {
	t.Helper()
	table := admin.NewTable()
	for i := range conns {
		table.Opened(&tunnel.Flow{Request: tunnel.Request{ID: fmt.Sprintf("%032x", i), Front: "link", Address: fmt.Sprintf("service-%d.namespace.svc.cluster.local:443", i), Source: tunnel.Addr{Text: "203.0.113.254:54321"}}, Result: tunnel.Result{Hop: tunnel.Hop{Role: "agent", ID: fmt.Sprintf("agent-%d", i%agents)}}, Far: tunnel.Addr{Text: "10.1.2.3:443"}, Opened: time.Now()})
	}
	for i := range 1000 {
		table.Dialed(&tunnel.Flow{Request: tunnel.Request{ID: fmt.Sprint("f", i), Address: "db:1"}}, time.Second, &tunnel.DialError{Failure: tunnel.FailTimeout})
	}
	handler := admin.Handler(http.NewServeMux(), admin.Source{Component: "konnectivity-server", ID: "server-1", Table: table,
		Peers: func() []admin.Peer {
			out := make([]admin.Peer, agents)
			for i := range out {
				out[i] = admin.Peer{Role: admin.RoleAgent, ID: fmt.Sprintf("agent-%d", i), Software: "konnectivity-agent", Protocol: "link", Remote: "203.0.113.254:54321",
					Identifiers: strings.Repeat("x", 300)}
			}
			out[agents-1].Silent = 9
			return out
		},
		More: func(s *admin.Status) { s.Peers[admin.RoleAgent] = agents },
	})
	stop := testutil.Start(t, table.Run)
	server := httptest.NewServer(handler)
	t.Cleanup(func() { server.Close(); stop() })
	address = server.Listener.Addr().String()
	testutil.Eventually(t, "the first look at the connections", func() bool {
		var s admin.Status
		answer := httptest.NewRecorder()
		handler.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "http://localhost/api/"+admin.Version+"/status", nil))
		return json.Unmarshal(answer.Body.Bytes(), &s) == nil && s.Connections.Open == conns
	})
	return address
}

// At 10,000 connections and 1,000 agents an answer stays small: the usual one
// as if there were ten of each, the largest one within a few MB.
func TestStatusOfALargeProcessIsBounded(t *testing.T) {
	t.Parallel()
	address := large(t, 10000, 1000)
	for _, c := range []struct {
		name string
		view status.View
		most int // bytes
	}{
		{"table", status.View{Limit: 10}, 16 << 10}, // first: the failures that it shows are forgotten after a minute
		{"json", status.View{Limit: 10, JSON: true}, 64 << 10},
		{"as many as goes", status.View{Limit: 1000, JSON: true}, 4 << 20},
		{"filtered", status.View{Limit: 10, JSON: true, Filter: "service-77."}, 16 << 10},
	} {
		c.view.Patience = 5 * time.Minute // 20 to 300 ms on an idle machine
		var shown strings.Builder
		err := c.view.Show(t.Context(), &shown, []string{address})
		out := shown.String()
		testutil.Holds(t, err == nil && len(out) <= c.most,
			"%s: %v, %d bytes, want at most %d", c.name, err, len(out), c.most)
		t.Logf("%s: %d bytes", c.name, len(out))
		if c.name == "filtered" {
			var reports []status.Report
			if err := json.Unmarshal([]byte(out), &reports); err != nil || len(reports[0].Connections) != 1 || reports[0].Connections[0].Destination != "service-77.namespace.svc.cluster.local:443" {
				t.Errorf("%v %.500s", err, out)
			}
		}
		if c.name == "table" && (!strings.Contains(out, "10000 connections") || !strings.Contains(out, "and 9990 more") || !strings.Contains(out, "1000 agents") ||
			!strings.Contains(out, "agent agent-999 at 203.0.113.254:54321 does not answer") || !strings.Contains(out, "failed dials in the last minute: at least 200 timeout;")) {
			t.Errorf("%s", out)
		}
	}
}

// One that hangs costs no more than its bound.
func TestStatusOfHungProcess(t *testing.T) {
	t.Parallel()
	hung := []string{says(t, ""), says(t, ""), says(t, "")}
	view := status.View{Limit: 10, Patience: 100 * time.Millisecond}
	var out strings.Builder
	if err := view.Show(t.Context(), &out, hung); err == nil || strings.Count(out.String(), "no answer from the admin API") != len(hung) {
		t.Errorf("%v\n%s", err, out.String())
	}
}

// It costs the others nothing either, since all are asked at once: none of these
// answers before every one was asked.
func TestStatusAsksConcurrently(t *testing.T) {
	t.Parallel()
	behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: large(t, 1, 1)})
	addresses := make([]string, 3)
	var asked sync.WaitGroup
	asked.Add(len(addresses))
	for i := range addresses {
		first := sync.OnceFunc(asked.Done)
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			first()
			asked.Wait()
			behind.ServeHTTP(w, r)
		}))
		t.Cleanup(s.Close)
		addresses[i] = s.Listener.Addr().String()
	}
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	code, out, _ := konnectivity(append([]string{"status"}, addresses...)...)
	testutil.Holds(t, code == 0 && strings.Count(out, "1 connection") == len(addresses), "%d\n%s", code, out)
}

// interrupted passes looks on to an admin port, and answers the third by Ctrl-C.
func interrupted(t *testing.T, address string, signals chan<- os.Signal) string {
	t.Helper()
	behind := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address})
	var looks atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/status") && looks.Add(1) == 3 {
			signals <- os.Interrupt
			<-r.Context().Done()
			return
		}
		behind.ServeHTTP(w, r)
	}))
	t.Cleanup(http.DefaultTransport.(*http.Transport).CloseIdleConnections)
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// Watch shows frame after frame until Ctrl-C, which is no failure and shows none,
// even in the middle of a look.
func TestStatusWatches(t *testing.T) {
	address := large(t, 10, 1)
	t.Setenv("COLUMNS", "90")
	t.Setenv("LINES", "24")
	for _, format := range []string{"table", "json"} {
		var out, stderr bytes.Buffer
		root := newRoot()
		root.SetOut(&out)
		signals := make(chan os.Signal, 1)
		at := interrupted(t, address, signals)
		if status := cli.Run(root, []string{"status", at, "--watch", "--interval=200ms", "-o=" + format}, &stderr, signals); status != 0 {
			t.Errorf("%s: %d %q", format, status, stderr.String())
		}
		frames := strings.Split(out.String(), "\x1b[H")[1:]
		if format == "json" {
			frames = strings.Split(strings.TrimSpace(out.String()), "\n")
		}
		testutil.Requires(t, len(frames) == 2, "%s: %q", format, out.String())
		for _, frame := range frames {
			var reports []status.Report
			testutil.Holds(t, format != "json" || json.Unmarshal([]byte(frame), &reports) == nil, "%q is no JSON", frame)
			testutil.Holds(t, format != "table" || strings.Count(frame, "\n") <= 23 &&
				strings.Contains(frame, "10 connections"), "a frame of %d lines:\n%s", 1+strings.Count(frame, "\n"), frame)
			for line := range strings.Lines(strings.ReplaceAll(frame, "\x1b[K", "")) {
				columns := utf8.RuneCountInString(strings.TrimRight(line, "\n"))
				testutil.Holds(t, format != "table" || columns <= 90, "a line of %d columns: %q", columns, line)
			}
		}
	}
}

func TestStatusOrder(t *testing.T) {
	l := newLab(t)
	l.start()
	stop := l.stall()
	defer stop()
	l.check(l.closed) // a dial that fails, and others
	// On a busy machine a moment in which nothing moves looks like a stall, too.
	var missing, out string
	defer func() {
		if t.Failed() {
			t.Logf("no %q in\n%s", missing, out)
		}
	}()
	testutil.Eventually(t, "all that is to be seen at once", func() bool {
		var code int
		if code, out, _ = konnectivity("status", l.admin); code != 0 {
			return false
		}
		for _, want := range []string{"1 stalled", "konnectivity-server server-1, ready", "1 agent", "agent-1", "stalled-one", "by destination", "refused", "nothing listens"} {
			if !strings.Contains(out, want) {
				missing = want
				return false
			}
		}
		return true
	})
	testutil.Eventually(t, "the one that is stalled", func() bool {
		code, out, _ := konnectivity("status", l.admin, "-o", "json", "--filter=stalled-one")
		var reports []status.Report
		err := json.Unmarshal([]byte(out), &reports)
		testutil.Requires(t, err == nil && code == 0, "%v %v", code, err)
		c := reports[0].Connections
		return len(c) == 1 && c[0].State == admin.StateStalled && c[0].Next == "agent agent-1"
	})
	l.args = []string{"--server-admin=" + l.admin}
	testutil.Eventually(t, "a check that sees the stall", func() bool {
		_, out := l.check()
		return strings.Contains(out, "! stalled connections: 1 connection waits")
	})
}

// A port alone is one of this machine's, as in a sidecar's --admin-address. One where nothing
// listens is named.
func TestStatusOfPort(t *testing.T) {
	l := newLab(t)
	l.start()
	_, port, _ := net.SplitHostPort(l.admin)
	expect(t, 0, "ready", "status", ":"+port)
	expect(t, 1, l.closed+": no answer from the admin API: connection refused", "status", l.closed)
}
