package server

import (
	"context"
	"testing"
	"time"

	"konnectivity/tunnel"
)

// asked is how a client asks cl for a dial, of a connection that exists if it is to be
// resumed.
func asked(t *testing.T, cl *cluster, resume *tunnel.Resume) *tunnel.Flow {
	client, leave := cl.limits.Join("", nil, tunnel.Addr{Text: "192.0.2.1:1"})
	t.Cleanup(leave)
	f := tunnel.NewFlow("tcp", "x:1")
	f.Client, f.Resume = client, resume
	return f
}

// What a tenant's agents do not have is charged to it, and nobody else.
func TestDialsThatAreResumedInVain(t *testing.T) {
	s := startSharers(t)
	red, blue := s.add("red", "bounds: {dialsPerSecond: 10}"), s.add("blue", "")
	for _, c := range []*sharer{red, blue} {
		c.hasAgent() // so that the server has taken it up
	}
	for cl, want := range map[*cluster]bool{red.cluster(): true, blue.cluster(): false, s.own: false} {
		dialed := 0
		d := cl.newDialer()
		d.next = tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
			dialed++
			return nil, &tunnel.DialError{Failure: tunnel.FailGone}
		})
		for range 100 {
			_, _ = d.Dial(t.Context(), asked(t, cl, &tunnel.Resume{Window: time.Second, Epoch: 1}))
		}
		if refused := dialed < 50; refused != want { // 11 at once, and 10 a second
			t.Errorf("%q: %d of 100 were dialed", cl.name, dialed)
		}
	}
}

// A dial is pending while it waits for what other servers have, and no agent is picked before.
func TestADialThatWaitsForOtherServers(t *testing.T) {
	r := startServer(t)
	told, picked := make(chan struct{}), make(chan struct{})
	r.own.startup = startup{told: told}
	d := r.own.newDialer()
	d.next = tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
		close(picked)
		return nil, nil
	})
	f, done := asked(t, r.own, nil), make(chan struct{})
	go func() {
		defer close(done)
		_, _ = d.Dial(t.Context(), f)
	}()
	r.eventually("it is pending", func() bool { return r.metric("pending_backend_dials 1") })
	if tunnel.Closed(picked) {
		t.Error("an agent is picked before they have told")
	}
	close(told)
	<-done
	if !tunnel.Closed(picked) || !r.metric("pending_backend_dials 0") {
		t.Error("no agent is picked, or the dial is pending still")
	}
}
