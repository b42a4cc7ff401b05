package agent

import (
	"net"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/agent/egress"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// strict dials, until it is told to forbid all.
type strict struct {
	*egress.Dialer
	forbids atomic.Bool
}

func (s *strict) Allow(f *tunnel.Flow, connected net.Addr) error {
	if s.forbids.Load() {
		return &tunnel.DialError{Failure: tunnel.FailDenied}
	}
	return s.Dialer.Allow(f, connected)
}

// A connection that is to be resumed has to pass the policy of the agent's Dialer.
func TestResumesPassThePolicy(t *testing.T) {
	server, opts := newServed(t, "server-1", false)
	dialer := &strict{Dialer: egress.New(egress.Options{})}
	opts.ResumeWindow, opts.Dialer = time.Minute, dialer
	testutil.Must(connectOnce(t, opts))(t)
	ses, address := server.next().peer.(*link.Session), testutil.Echo(t)
	open := func(epoch uint32) error {
		f := tunnel.NewFlow("tcp", address)
		f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: time.Minute, Epoch: epoch}
		_, err := ses.Dial(t.Context(), f)
		return err
	}
	for epoch := range uint32(2) {
		testutil.NoError(t, open(epoch))
	}
	dialer.forbids.Store(true)
	testutil.Equal(t, tunnel.FailureOf(open(2)), tunnel.FailDenied, "resumed where a policy forbids it")
	dialer.forbids.Store(false)
	testutil.Equal(t, tunnel.FailureOf(open(3)), tunnel.FailGone, "it has not ended")
}

func TestDetachedLimit(t *testing.T) {
	for _, c := range []struct {
		budget      *link.Budget
		descriptors int
		want        int
	}{
		{link.NewBudget(256 << 20), 0, 65536},
		{link.NewBudget(256 << 20), 20000, 15000},
		{link.NewBudget(16 << 20), 20000, 4096},
		{nil, 1024, 768},
		{nil, 0, 0},
	} {
		testutil.Equal(t, alone(c.budget, c.descriptors), c.want, "%d bytes and %d descriptors", c.budget.Max(), c.descriptors)
	}
}

// An agent that drains goes on to connect to servers while a connection is open that
// outlives its link. It tells each that it drains, and looks for none once that has ended.
func TestDrainKeepsConnectionsThatOutliveTheirLinks(t *testing.T) {
	t.Parallel() // it waits
	server, opts := newServed(t, "server-1", false)
	opts.ResumeWindow, opts.Grace = patience, patience
	_, stop := runAgent(t, opts)
	ses, address := server.next().peer.(*link.Session), testutil.Echo(t)
	var c tunnel.Conn
	open := func(epoch uint32) {
		f := tunnel.NewFlow("tcp", address)
		f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: patience, Epoch: epoch}
		c = testutil.Must(ses.Dial(t.Context(), f))(t)
	}
	open(0)
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	for epoch := range uint32(2) {
		awaitEnd(t, ses.Draining(), "the server is not told that the agent drains")
		_ = ses.Close()
		ses = server.next().peer.(*link.Session)
		open(epoch + 1)
	}
	awaitEnd(t, ses.Draining(), "the last link does not drain")
	c.(*link.Stream).Acknowledge(link.Ack{}) // or its reset counts as one more loss
	testutil.NoError(t, c.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled}))
	testutil.NoError(t, testutil.Receive(t, "the agent ends", stopped))
	testutil.Equal(t, len(server.arrivals), 0, "links after that")
}
