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
