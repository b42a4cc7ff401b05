package agent

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/agent/egress"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
	"konnectivity/tunnel/shares"
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
	open := func(epoch uint32) error { return testutil.Err(openToResume(t, ses, address, epoch)) }
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
// outlives its link, and tells each that it drains.
func TestDrainKeepsConnectionsThatOutliveTheirLinks(t *testing.T) {
	t.Parallel() // it waits
	server, opts := newServed(t, "server-1", false)
	opts.ResumeWindow, opts.Grace = patience, patience
	_, stop := runAgent(t, opts)
	ses, address := server.next().peer.(*link.Session), testutil.Echo(t)
	c := testutil.Must(openToResume(t, ses, address, 0))(t)
	stopped := testutil.Later(stop)
	for epoch := range uint32(2) {
		testutil.Receive(t, "the server is told that the agent drains", ses.Drains().Done())
		_ = ses.Close()
		ses = server.next().peer.(*link.Session)
		c = testutil.Must(openToResume(t, ses, address, epoch+1))(t)
	}
	testutil.Receive(t, "the last link drains", ses.Drains().Done())
	endResumed(t, c)
	testutil.NoError(t, testutil.Receive(t, "the agent ends", stopped))
	testutil.Equal(t, len(server.arrivals), 0, "links after that")
}

// It also does so for one that was being dialed when the agent began to drain, as nothing
// was open that would outlive its link.
func TestDrainKeepsAConnectionThatWasBeingDialed(t *testing.T) {
	t.Parallel() // it waits
	server, opts := newServed(t, "server-1", false)
	opts.ResumeWindow, opts.Grace = patience, patience
	far, asked, release := egress.New(egress.Options{}), make(chan struct{}), make(chan struct{})
	opts.Dialer = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
		close(asked)
		<-release
		return far.Dial(ctx, f)
	})
	_, stop := runAgent(t, opts)
	ses, address := server.next().peer.(*link.Session), testutil.Echo(t)
	opened := testutil.Later(func() error { return testutil.Err(openToResume(t, ses, address, 0)) })
	testutil.Receive(t, "a dial", asked)
	stopped := testutil.Later(stop)
	testutil.Receive(t, "the server is told that the agent drains", ses.Drains().Done())
	time.Sleep(4 * drainPoll) // several polls, which find nothing open
	close(release)
	testutil.NoError(t, testutil.Receive(t, "the dial is answered", opened))
	time.Sleep(4 * drainPoll)
	_ = ses.Close()
	ses = server.next().peer.(*link.Session)
	testutil.Receive(t, "the next link drains", ses.Drains().Done())
	endResumed(t, testutil.Must(openToResume(t, ses, address, 1))(t))
	testutil.NoError(t, testutil.Receive(t, "the agent ends", stopped))
}

// openToResume opens a connection that outlives ses, or resumes it.
func openToResume(t *testing.T, ses *link.Session, address string, epoch uint32) (tunnel.Conn, error) {
	f := tunnel.NewFlow("tcp", address)
	f.Resume = &tunnel.Resume{Token: [16]byte{1}, Window: patience, Epoch: epoch}
	return ses.Dial(t.Context(), f)
}

// endResumed resets such a connection.
func endResumed(t *testing.T, c tunnel.Conn) {
	t.Helper()
	c.(*link.Stream).Acknowledge(link.Ack{}) // or its reset counts as one more loss
	testutil.NoError(t, c.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled}))
}

// One client opens connections until it hears of no more. That leaves descriptors of the
// agent to others: to one of the same server, to one that another server gives the same
// number, and to those of an old server, which are one client. What ends is there again.
func TestAClientLeavesDescriptorsToOthers(t *testing.T) {
	ca, config := newCA(t)
	first, second, old := newTestServer(t, ca, "a", false), newTestServer(t, ca, "b", false), newTestServer(t, ca, "c", true)
	opts := testOptions(config, first.address(), second.address(), old.address())
	opts.Dialer = egress.New(egress.Options{Descriptors: 256})
	runAgent(t, opts)
	l, budget := testutil.Listen(t), shares.NewBudget(1<<30) // whose queue takes all connections
	dial := func(by peer, client uint64) (tunnel.Conn, error) {
		f := tunnel.NewFlow("tcp", l.Addr().String())
		f.Client = &tunnel.Client{Budget: budget.ShareNumbered(client)}
		return by.Dial(testutil.Context(t), f)
	}
	server := first.next()
	var held []tunnel.Conn
	c, err := dial(server, 1)
	for ; err == nil; c, err = dial(server, 1) {
		held = append(held, c)
	}
	testutil.Holds(t, tunnel.FailureOf(err) == tunnel.FailExhausted && len(held) >= 128,
		"a client alone has %d connections, then %v", len(held), err)
	others := map[string]func() (tunnel.Conn, error){
		"another client":            func() (tunnel.Conn, error) { return dial(server, 2) },
		"another server's client":   func() (tunnel.Conn, error) { return dial(second.next(), 1) },
		"a client of an old server": func() (tunnel.Conn, error) { return dial(old.next(), 0) },
	}
	for who, dial := range others {
		testutil.Succeeds(t, testutil.Err(dial()), "%s", who)
	}
	for _, c := range held {
		_ = c.Reset(nil)
	}
	testutil.Eventually(t, "it may have more again", func() bool { _, err := dial(server, 1); return err == nil })
}
