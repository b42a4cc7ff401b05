package admin

import (
	"context"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// lasting is a connection that outlives its links, as a test has it fare.
type lasting struct{ now tunnel.ResumeStatus }

func (l *lasting) ResumeStatus() tunnel.ResumeStatus { return l.now }

func TestResumedConnectionInList(t *testing.T) {
	table := NewTable()
	var linked []Peer
	h := mounted(Source{Component: "test", Table: table, Peers: func() []Peer { return linked }})
	l := new(lasting)
	f := &tunnel.Flow{Request: tunnel.Request{ID: "one", Front: "socks5", Address: "a.test:443", Source: tunnel.Addr{Text: "10.0.0.1:5"}}, Result: tunnel.Result{Hop: tunnel.Hop{Role: "server", ID: "a"}, Resumable: l}, Opened: time.Now()}
	table.Opened(f)
	l.now = tunnel.ResumeStatus{Lost: time.Now().Add(-3 * time.Second)}
	f.Hold(true, true)
	for range 3 {
		table.sample(time.Now(), sampleEvery)
	}
	c := get[Page[Connection]](t, h, "/api/v1/connections?state=resuming&sort=-state").Items[0]
	testutil.Holds(t, c.State == StateResuming && c.ResumingFor >= 3 && c.StalledBy == "" && c.Next == "server a",
		"without a link: %+v", c)
	s := get[Status](t, h, "/api/v1/status").Connections
	testutil.Holds(t, s.Resuming == 1 && s.Stalled == 0, "%+v", s)
	testutil.Equal(t, get[Page[Peer]](t, h, "/api/v1/peers?role=server").Matched, 0,
		"servers whose link was lost that are listed")
	linked = []Peer{{Role: RoleServer, ID: "a"}, {Role: RoleServer, ID: "b"}}
	f.Hold(true, false)
	f.Carry(true, 1000)
	l.now = tunnel.ResumeStatus{Resumes: 1, Hop: tunnel.Hop{Role: "server", ID: "b"}}
	table.sample(time.Now(), sampleEvery)
	c = get[Page[Connection]](t, h, "/api/v1/connections?filter=server+b").Items[0]
	testutil.Holds(t, c.State == StateActive && c.ResumingFor == 0 && c.Resumes == 1 && c.Next == "server b" &&
		c.Source == "10.0.0.1:5", "resumed: %+v", c)
	for _, p := range get[Page[Peer]](t, h, "/api/v1/peers?role=server").Items {
		testutil.Equal(t, p.Up > 0, p.ID == "b", "%s carries %v bytes a second, which", p.ID, p.Up)
	}
}

// A process between the ends tells nothing of what they resume elsewhere.
func TestResumedConnectionIsNoFailure(t *testing.T) {
	table := NewTable()
	h := mounted(Source{Component: "test", Table: table})
	between := func() *tunnel.Flow {
		return &tunnel.Flow{Request: tunnel.Request{Front: "link", Address: "a.test:443"}, Opened: time.Now(), Resume: &tunnel.Resume{Granted: tunnel.Grant{Window: time.Second}}}
	}
	for _, tc := range []struct {
		code tunnel.Code
		want int
	}{{tunnel.CodeLost, 0}, {tunnel.CodeShutdown, 0}, {tunnel.CodeMemory, 1}} {
		f := between()
		table.Opened(f)
		table.Closed(f, time.Second, &tunnel.ResetError{Code: tc.code})
		testutil.Equal(t, len(table.failures.list("")), tc.want, "%v: failures", tc.code)
	}
	f := between()
	f.Resume.Epoch = 1
	table.Dialed(f, time.Minute, &tunnel.DialError{Failure: tunnel.FailAgentLost})
	table.Dialed(f, time.Minute, context.Canceled)
	if d := get[Status](t, h, "/api/v1/status").Dials; d.Total != 0 || d.Failed != 0 || len(table.failures.list("")) != 1 {
		t.Errorf("tries to resume are dials: %+v", d)
	}
}
