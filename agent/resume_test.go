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
	ca, config := newCA(t)
	server := newTestServer(t, ca, "server-1", false)
	dialer := &strict{Dialer: egress.New(egress.Options{})}
	opts := testOptions(config, server.address())
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
	if err := open(2); tunnel.FailureOf(err) != tunnel.FailDenied {
		t.Errorf("resumed where a policy forbids it: %v", err)
	}
	dialer.forbids.Store(false)
	if err := open(3); tunnel.FailureOf(err) != tunnel.FailGone {
		t.Errorf("it has not ended: %v", err)
	}
}
