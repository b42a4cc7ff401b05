package status

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"konnectivity/internal/admin"
	"konnectivity/internal/testutil"
)

// busy is what a process with much to tell says.
func busy(conns, peers, failed int) Report {
	now := time.Now()
	r := Report{Address: "127.0.0.1:8095", Matched: conns * 100, Status: admin.Status{Component: serverComponent, ID: "server-1", Ready: true, Now: now,
		Started: admin.Past{Time: now.Add(-time.Hour)}, Peers: map[string]int{admin.RoleAgent: peers}, Strategies: map[string]int{"destHost": 3, "defaultRoute": 40},
		Connections: admin.Connections{Open: conns * 100, Stalled: conns}, Buffers: map[string]admin.Buffer{"link": {Used: 90, Limit: 100}}}}
	for i := range peers {
		r.Peers = append(r.Peers, admin.Peer{Role: admin.RoleAgent, ID: fmt.Sprintf("agent-%d.of-a-node-with-a-long-name.example.com", i), Software: "konnectivity-agent 1.2.3", Protocol: "link",
			Remote: "203.0.113.254:54321", Silent: 9, Window: 1 << 20, RoundTrip: 0.0123})
	}
	for i := range conns {
		r.Connections = append(r.Connections, admin.Connection{ID: fmt.Sprintf("%032d", i), Front: "connect", Source: "203.0.113.254:54321", Since: admin.Past{Time: now},
			Destination: "kubernetes.default.svc.cluster.local:6443", Next: "agent agent-7", State: admin.StateStalled, StalledBy: "client", StalledFor: 12})
	}
	for range failed {
		r.Failures = append(r.Failures, admin.Failure{Time: admin.Past{Time: now}, Stage: "dial", ID: strings.Repeat("7", 32), Destination: "db.prod.svc:5432", Next: "agent agent-7",
			Failure: "timeout", Cause: "i/o timeout", Hint: strings.Repeat("a hint of some length ", 6)})
	}
	r.Troubles = troubles(r)
	return r
}

// No line is wider than the screen, and problems are at the top.
func TestStatusFitsTheScreen(t *testing.T) {
	for _, columns := range []int{80, 100, 200} {
		var out bytes.Buffer
		p := &printer{out: &out, columns: columns}
		p.report(busy(10, 10, 10))
		lines := strings.Split(out.String(), "\n")
		for _, line := range lines {
			testutil.AtMost(t, utf8.RuneCountInString(line), columns, "columns of %q", line)
		}
		top := strings.Join(strings.Fields(strings.Join(lines[:min(20, len(lines))], " ")), " ")
		for _, want := range []string{"1000 connections, 10 stalled", "does not answer", "the memory for bytes in flight by link is full", "10 connections wait for a side that does not read",
			"failed dials in the last minute: 10 timeout; db.prod.svc:5432 by agent agent-7: i/o timeout"} {
			testutil.Contains(t, top, want, "at the top of %d columns", columns)
		}
		testutil.Holds(t, strings.Contains(out.String(), "stalled 12 s by client") &&
			strings.Contains(out.String(), "silent 9.0 s"), "%d columns: states are cut\n%s", columns, out.String())
	}
}

func TestWatchFitsTheScreen(t *testing.T) {
	text := []byte(strings.Repeat("line\n", 100))
	got := string(inPlace(text, 24))
	if n := strings.Count(got, "\n"); n != 23 || !strings.HasPrefix(got, "\x1b[Hline\x1b[K\n") || !strings.HasSuffix(got, "\x1b[K\x1b[J") || !strings.Contains(got, "more than fits") {
		t.Errorf("%d line ends in %q", n, got)
	}
	testutil.Equal(t, string(inPlace([]byte("a\nb\n"), 24)), "\x1b[Ha\x1b[K\nb\x1b[K\x1b[J", "in place")
	o := &View{Watch: true, Limit: 10}
	for rows, want := range map[int]int{0: 10, 24: 4, 100: 10, 5: minListed} {
		testutil.Equal(t, o.fitting(rows), want, "of %d rows, lists of", rows)
	}
	o.Exactly = true
	testutil.Equal(t, o.fitting(24), 10, "with --limit, lists of")
}

func TestResumedConnectionsAreShown(t *testing.T) {
	var out bytes.Buffer
	p := &printer{out: &out}
	p.report(Report{
		Status:      admin.Status{Connections: admin.Connections{Open: 2, Resuming: 1}},
		Connections: []admin.Connection{{ID: "a", State: admin.StateResuming, ResumingFor: 2.5}, {ID: "b", State: admin.StateActive, Resumes: 3}},
	})
	for _, want := range []string{"2 connections, 1 resuming", "resuming 2.5 s\n", "active, resumed 3×"} {
		testutil.Contains(t, out.String(), want, "status")
	}
}

// A server of many clusters says whose each line is; others have no such column.
func TestTenantsAreShown(t *testing.T) {
	r := Report{
		Status:      admin.Status{Peers: map[string]int{admin.RoleAgent: 1, admin.RoleClient: 2}},
		Peers:       []admin.Peer{{Role: admin.RoleAgent, ID: "a1"}, {Role: admin.RoleClient, ID: "c1"}},
		Connections: []admin.Connection{{ID: "x1", State: admin.StateActive}},
		Failures:    []admin.Failure{{ID: "x2", Failure: "timeout"}, {Failure: "lost"}},
	}
	print := func() string {
		var out bytes.Buffer
		(&printer{out: &out}).report(r)
		return strings.Join(strings.Fields(out.String()), " ")
	}
	for _, want := range []string{"1 agent · 2 clients ·", "PEER ID PROTOCOL", " ID FRONT SOURCE", "(x2)"} {
		testutil.Contains(t, print(), want, "without tenants")
	}
	r.Peers[0].Tenant, r.Connections[0].Tenant, r.Failures[0].Tenant, r.Failures[1].Tenant = "red", "blue", "red", "blue"
	for _, want := range []string{"PEER TENANT ID PROTOCOL", "agent red a1", "client - c1", "ID TENANT FRONT", "x1 blue", "(tenant red x2)", "(tenant blue)"} {
		testutil.Contains(t, print(), want, "with tenants")
	}
}

func TestTroubles(t *testing.T) {
	now := time.Now()
	lost := admin.Failure{Stage: "peer", Time: admin.Past{Time: now.Add(-20 * time.Second)}, Source: "10.0.0.1:5", Destination: "agent a2", Cause: "it fell silent"}
	one := map[string]int{admin.RoleAgent: 1}
	for name, c := range map[string]struct {
		r    Report
		want []string
	}{
		"nothing":      {Report{Status: admin.Status{Component: serverComponent, Peers: one, Now: now}}, nil},
		"no agent yet": {Report{Status: admin.Status{Component: serverComponent, ID: "s", Now: now}}, []string{"no agent is connected to s, and none was since it started"}},
		"no agent any more": {Report{Status: admin.Status{Component: serverComponent, ID: "s", Now: now, LastGone: &admin.Departure{Time: admin.Past{Time: now.Add(-20 * time.Second)}, ID: "a", Remote: "r", Cause: "c"}}},
			[]string{"no agent is connected to s; the last, a at r, left 20 s ago: c"}},
		"one lost":    {Report{Status: admin.Status{Component: serverComponent, Peers: one, Now: now}, Failures: []admin.Failure{lost}}, []string{"agent a2 at 10.0.0.1:5 was lost 20 s ago: it fell silent"}},
		"and back":    {Report{Status: admin.Status{Component: serverComponent, Peers: one, Now: now}, Failures: []admin.Failure{lost}, Peers: []admin.Peer{{Role: admin.RoleAgent, ID: "a2"}}}, nil},
		"long ago":    {Report{Status: admin.Status{Component: serverComponent, Peers: one, Now: now.Add(time.Hour)}, Failures: []admin.Failure{lost}}, nil},
		"old failure": {Report{Status: admin.Status{Peers: one, Now: now}, Failures: []admin.Failure{{Stage: "dial", Time: admin.Past{Time: now.Add(-2 * time.Minute)}, Failure: "timeout"}}}, nil},
		"an agent":    {Report{Status: admin.Status{Component: "konnectivity-agent", Now: now}}, nil},
		"tenants":     {Report{Status: admin.Status{Component: serverComponent, Peers: one, Now: now, Tenants: map[string]int{"serving": 7, "broken": 2, "stale": 1}}}, []string{"tenants whose settings cannot be used: 2 broken, 1 stale; konnectivity tenants list tells why"}},
		"unlinked": {Report{Status: admin.Status{Component: serverComponent, Peers: one, Now: now, Unlinked: []admin.Unlinked{{Address: "192.0.2.1:8097", Cause: "refused"}, {Address: "192.0.2.2:8097"}}}},
			[]string{"agents of other servers may not be reached: there is no link to the server at 192.0.2.1:8097, and to 1 more: refused"}},
		"no audit": {Report{Status: admin.Status{Peers: one, Now: now, AuditError: "write /a: no space left on device"}},
			[]string{"records of the audit log cannot be written, and may be lost: write /a: no space left on device"}},
		"no policy": {Report{Status: admin.Status{Peers: one, Now: now, PolicyError: "rules: there is none"}},
			[]string{"the policy file cannot be used, and the rules before hold: rules: there is none"}},
		"all serve": {Report{Status: admin.Status{Component: serverComponent, Peers: one, Now: now, Tenants: map[string]int{"serving": 7}}}, nil},
		"some full": {Report{Status: admin.Status{Peers: one, Now: now, Buffers: map[string]admin.Buffer{"grpc": {Used: 75, Limit: 100}, "link": {Used: 74, Limit: 100}}}}, []string{"the memory for bytes in flight by grpc is full, 75 B of 100 B: 0 connections wait for a side that does not read"}},
	} {
		testutil.EqualSlices(t, troubles(c.r), c.want, "%s", name)
	}
	var silent []admin.Peer
	for i := range 9 {
		silent = append(silent, admin.Peer{Role: admin.RoleAgent, ID: fmt.Sprint(i), Remote: "r", Silent: 8})
	}
	if got := troubles(Report{Status: admin.Status{Peers: one, Now: now}, Peers: silent}); len(got) != 1 || strings.Count(got[0], "does not answer") != maxNamed || !strings.HasSuffix(got[0], "; nor do 6 more") {
		t.Errorf("%q", got)
	}
}

func TestStatusEscapesControlCharacters(t *testing.T) {
	var out bytes.Buffer
	p := &printer{out: &out}
	evil := "evil\x1b[2J\u009b31m\r\nagent"
	p.report(Report{
		Status:      admin.Status{Component: evil, ID: evil, Ready: false, Reason: evil},
		Peers:       []admin.Peer{{ID: evil, Software: evil, Remote: evil}},
		Connections: []admin.Connection{{ID: evil, Destination: evil, Next: evil, Source: evil}},
		Failures:    []admin.Failure{{ID: evil, Destination: evil, Cause: evil, Next: evil, Hint: evil}},
	})
	text := out.String()
	testutil.Holds(t, !strings.ContainsAny(text, "\x1b\r\u009b"), "%q", text)
}

// A long error of one tenant leaves room for the names of all.
func TestTenantsTableWithLongError(t *testing.T) {
	page := admin.Page[admin.Tenant]{Total: 2, Matched: 2, Items: []admin.Tenant{
		{Name: "cluster-in-the-west", State: "broken", Error: strings.Repeat("tenant.yaml: something is wrong; ", 9), ServerNames: []string{"west.example.com"}},
		{Name: "cluster-in-the-east", State: "serving", Ready: true, ServerNames: []string{"east.example.com"}},
	}}
	for _, columns := range []int{0, 40, 80, 100, 200, 500} {
		var out bytes.Buffer
		p := &printer{out: &out, columns: columns}
		p.tenants(page)
		words := strings.Join(strings.Fields(out.String()), " ")
		for _, want := range []string{"cluster-in-", "broken: tenant.yaml", " ready"} {
			testutil.Contains(t, words, want, "%d columns", columns)
		}
		for line := range strings.Lines(out.String()) {
			n := utf8.RuneCountInString(strings.TrimSuffix(line, "\n"))
			testutil.Holds(t, columns <= 0 || n <= columns, "%d columns: a line has %d", columns, n)
		}
		testutil.Equal(t, strings.Count(words, "wrong;"), 9, "of %d columns, parts of the error", columns)
	}
}
