package legacy

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestSessionKnowsItsServer(t *testing.T) {
	r := newRig(t, Limits{})
	p, s := r.agentWith(false, AgentConfig{
		Identifiers: "ipv4=10.0.0.1&default-route=true",
		Token:       func() (string, error) { return "secret", nil },
		Forwarder:   &tunnel.Forwarder{Dialer: tunnel.DialerFunc(dialTCP)},
	})
	testutil.Equal(t, s.ServerID(), "server-1", "the server")
	testutil.Equal(t, s.ServerCount(), 3, "servers")
	if p.ID() != "agent-1" || p.Identifiers() != "ipv4=10.0.0.1&default-route=true" || p.Token() != "secret" || p.TLS() != nil || p.RemoteAddr() == nil {
		t.Errorf("agent %q, %q, token %q", p.ID(), p.Identifiers(), p.Token())
	}
	testutil.Succeeds(t, s.Close(), "Close")
	testutil.Succeeds(t, s.Err(), "Err behind it")
	<-p.Ends().Done()
	testutil.Eventually(t, "leave is called", func() bool { return r.left.Load() == 1 })
	testutil.Succeeds(t, p.Err(), "an end in order")
}

func TestRefusedAgentReadsReason(t *testing.T) {
	r := newRig(t, Limits{})
	_, err := ConnectAgent(t.Context(), r.connect(false), AgentConfig{
		ID: "a", Forwarder: &tunnel.Forwarder{}, Token: func() (string, error) { return "wrong", nil },
	})
	testutil.Equal(t, status.Code(err), codes.PermissionDenied, "the status")
	testutil.ErrorSays(t, err, "this token is not accepted", "the reason")
	unread := errors.New("unreadable")
	_, err = ConnectAgent(t.Context(), r.connect(false), AgentConfig{
		ID: "a", Forwarder: &tunnel.Forwarder{}, Token: func() (string, error) { return "", unread },
	})
	testutil.ErrorIs(t, err, unread, "the error")
}

func TestConnectAgentEndsWithContext(t *testing.T) {
	r := newRig(t, Limits{})
	cc := r.connect(false)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := testutil.Err(ConnectAgent(ctx, cc, AgentConfig{ID: "a", Forwarder: &tunnel.Forwarder{}}))
	testutil.ErrorIs(t, err, context.Canceled, "the error")
}

// Upstream's server passes on its clients' numbers, which they choose each for
// itself: that of an open connection may come again.
func TestNumberOfOpenConnectionIsReusable(t *testing.T) {
	r := newRig(t, Limits{})
	p, s := r.agent(true)
	addr := testutil.Echo(t)
	first := dial(t, p, addr)
	p.mu.Lock()
	p.random = 0
	p.mu.Unlock()
	second := dial(t, p, addr)
	testutil.Equal(t, s.Streams(), 2, "connections")
	last := s.dials[1].ctx
	for i, c := range []tunnel.Conn{first, second} {
		testutil.Must(c.Write([]byte("hello")))(t)
		testutil.Must(io.ReadFull(c, make([]byte, 5)))(t)
		testutil.NoError(t, c.Close())
		testutil.Eventually(t, "it is over", func() bool { return s.Streams() == 1-i })
		s.mu.Lock()
		testutil.Equal(t, len(s.dials), 1-i, "dials that can be given up by its number")
		s.mu.Unlock()
	}
	testutil.ErrorIs(t, last.Err(), context.Canceled, "the context of a connection that is over")
	r.idle(p, s)
}

// The hash as the answer to EOF: what the protocol has no word for.
func TestHalfCloseKeepsTheAnswer(t *testing.T) {
	r := newRig(t, Limits{})
	p, s := r.agent(false)
	addr := testutil.Serve(t, func(c *net.TCPConn) {
		h := sha256.New()
		_, _ = io.Copy(h, c)
		_, _ = c.Write(h.Sum(nil))
	})
	payload := pattern(8 << 20)
	for range 5 {
		c := dial(t, p, addr)
		testutil.Must(c.Write(payload))(t)
		testutil.NoError(t, c.CloseWrite())
		testutil.Fails(t, testutil.Err(c.Write([]byte("x"))), "a write after CloseWrite")
		want := sha256.Sum256(payload)
		testutil.EqualSlices(t, testutil.Must(io.ReadAll(c))(t), want[:], "the answer")
	}
	r.idle(p, s)
}

func TestResetReachesTheTarget(t *testing.T) {
	bothModes(t, func(t *testing.T, r *rig, p *AgentPeer, s *AgentSession) {
		ended := make(chan error, 1)
		c := dial(t, p, testutil.Serve(t, func(c *net.TCPConn) {
			_, _ = c.Write([]byte("x"))
			_, err := io.Copy(io.Discard, c)
			ended <- err
		}))
		testutil.Must(io.ReadFull(c, make([]byte, 1)))(t)
		testutil.NoError(t, c.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled}))
		err := <-ended
		if !s.duplex && err != nil {
			t.Logf("an old server's end arrives as %v", err)
		}
		testutil.Holds(t, !s.duplex || errors.Is(err, syscall.ECONNRESET), "the target reads a reset: %v", err)
		testutil.ErrorIs(t, testutil.Err(c.Read(make([]byte, 1))), syscall.ECONNRESET, "its own read")
		r.idle(p, s)
	})
}

// block is a dialer that never answers.
func block(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

func TestLostAgentEndsConnectionsBehindReceivedBytes(t *testing.T) {
	bothModes(t, func(t *testing.T, r *rig, p *AgentPeer, s *AgentSession) {
		c := dial(t, p, testutil.Serve(t, func(c *net.TCPConn) { _, _ = c.Write([]byte("held")); _, _ = io.Copy(io.Discard, c) }))
		testutil.Eventually(t, "the bytes are here", func() bool { puts, _ := c.(*conn).in.state(); return puts > 0 })
		r.grpc.Stop() // the stream breaks
		<-p.Ends().Done()
		testutil.Must(io.ReadFull(c, make([]byte, 4)))(t) // what had come
		var reset *tunnel.ResetError
		_, err := c.Read(make([]byte, 1))
		testutil.Holds(t, errors.As(err, &reset) && reset.Code == tunnel.CodeLost, "it was lost: %v", err)
		if _, err := c.Write([]byte("x")); !errors.As(err, &reset) {
			t.Fatalf("write %v", err)
		}
		testutil.Equal(t, p.Streams(), 0, "streams")
	})
}

func TestClosedPeerResetsConnections(t *testing.T) {
	r := newRig(t, Limits{})
	p, s := r.agent(false)
	reset := make(chan error, 1)
	c := dial(t, p, testutil.Serve(t, func(c *net.TCPConn) { _, err := io.Copy(io.Discard, c); reset <- err }))
	_, _ = c.Write([]byte("x"))
	_ = p.Close()
	<-p.Ends().Done()
	<-s.Done()
	testutil.ErrorIs(t, <-reset, syscall.ECONNRESET, "the target's read")
	testutil.Equal(t, status.Code(s.Err()), codes.Unavailable, "what the agent hears")
}

func TestDrainBothWays(t *testing.T) {
	r := newRig(t, Limits{})
	p, s := r.agent(false)
	s.Drain()
	s.Drain()
	p.Drain()
	for _, ch := range []<-chan struct{}{p.Drains().Done(), s.Drains().Done()} {
		testutil.Receive(t, "the other side knows", ch)
	}
	c := dial(t, p, testutil.Echo(t)) // draining agents still serve
	_, _ = c.Write([]byte("x"))
	testutil.Must(c.Read(make([]byte, 1)))(t)
}
