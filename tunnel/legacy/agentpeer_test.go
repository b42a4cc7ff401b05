package legacy

import (
	"context"
	"fmt"
	"io"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// rawAgent is an agent that the test plays by hand.
type rawAgent struct {
	rawPeer
	peer *AgentPeer
}

func (r *rig) rawAgent(t *testing.T) *rawAgent {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	ctx = metadata.AppendToOutgoingContext(ctx, "agentID", "raw", "agentIdentifiers", "host=a")
	stream := testutil.Must(r.connect(true).NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, connectFullMethod))(t)
	md, err := stream.Header()
	testutil.Requires(t, err == nil && len(md.Get("serverID")) == 1 && len(md.Get("serverCount")) == 1,
		"header %v, %v", md, err)
	testutil.Equal(t, len(md.Get(keyDuplex)), 0, "half-close, offered to an agent that did not")
	return &rawAgent{rawPeer{stream, t}, <-r.peers}
}

// dialed is the outcome of a dial.
type dialed struct {
	c   tunnel.Conn
	err error
}

// dial dials in the background, and returns the number of the dial once the agent is asked.
func (a *rawAgent) dial(ctx context.Context) (random int64, outcome chan dialed) {
	a.t.Helper()
	outcome = make(chan dialed, 1)
	go func() {
		c, err := a.peer.Dial(ctx, tunnel.NewFlow("tcp", "a:1"))
		outcome <- dialed{c, err}
	}()
	request := a.want(client.PacketType_DIAL_REQ).GetDialRequest()
	testutil.Equal(a.t, request.Protocol+" "+request.Address, "tcp a:1", "what is asked for")
	return request.Random, outcome
}

// accept answers a dial with connection id.
func (a *rawAgent) accept(ctx context.Context, id int64) tunnel.Conn {
	a.t.Helper()
	random, outcome := a.dial(ctx)
	a.send(dialResponse(random, id, ""))
	got := <-outcome
	testutil.NoError(a.t, got.err)
	_ = got.c.SetDeadline(time.Now().Add(patience))
	return got.c
}

func TestUnknownDialResponseIsAnsweredByCloseRequest(t *testing.T) {
	r := newRig(t, Limits{})
	a := r.rawAgent(t)
	a.send(dialResponse(12345, 7, ""))
	testutil.Equal(t, a.want(client.PacketType_CLOSE_REQ).GetCloseRequest().ConnectID, 7, "closed")
	a.send(dialResponse(12346, 0, "refused")) // nothing to close
	a.send(dataPacket(99, []byte("x")))
	testutil.Equal(t, a.want(client.PacketType_CLOSE_REQ).GetCloseRequest().ConnectID, 99, "closed, as it is unknown")
	testutil.Equal(t, r.metrics.unknown.Load(), 2, "unknown dial responses")
}

// Whoever hears that the agent of a dial is lost finds its stream over, and so need not take it
// for one that is still there.
func TestTheStreamIsOverOnceItsDialsFail(t *testing.T) {
	a := newRig(t, Limits{}).rawAgent(t)
	answers := make(chan dialAnswer) // unbuffered: the second is told once the first is taken
	a.peer.mu.Lock()
	for random := range int64(2) {
		a.peer.pending[-random-1] = &pendingDial{address: "a:1", answer: answers}
	}
	a.peer.mu.Unlock()
	testutil.NoError(t, a.CloseSend())
	for range 2 {
		told := testutil.Receive(t, "a dial is answered", answers)
		testutil.Holds(t, a.peer.Ends().Happened(), "the stream goes on")
		testutil.Equal(t, tunnel.FailureOf(told.err), tunnel.FailAgentLost, "the failure")
	}
	err := testutil.Err(a.peer.Dial(t.Context(), tunnel.NewFlow("tcp", "a:1")))
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailAgentLost, "a dial afterwards")
}

func TestCancelledDialClosesLateConnection(t *testing.T) {
	r := newRig(t, Limits{})
	a := r.rawAgent(t)
	ctx, cancel := context.WithCancel(t.Context())
	random, outcome := a.dial(ctx)
	cancel()
	testutil.Equal(t, tunnel.FailureOf((<-outcome).err), tunnel.FailCancelled, "what the caller hears")
	testutil.Equal(t, a.want(client.PacketType_DIAL_CLS).GetCloseDial().Random, random, "the dial that is given up")
	a.send(dialResponse(random, 31, ""))
	testutil.Equal(t, a.want(client.PacketType_CLOSE_REQ).GetCloseRequest().ConnectID, 31, "closed")
	testutil.Equal(t, a.peer.Streams(), 0, "streams are left")
}

// Where nothing can be sent any more, a dial fails as those do that the agent was lost
// with, also before the reader has heard of it: it is not the agent that is busy.
func TestDialOnFailedStream(t *testing.T) {
	a := newRig(t, Limits{}).rawAgent(t)
	a.peer.mux.sender.stop(io.ErrClosedPipe)
	outcome := make(chan error, 1)
	go func() {
		_, err := a.peer.Dial(t.Context(), tunnel.NewFlow("tcp", "a:1"))
		outcome <- err
	}()
	select {
	case err := <-outcome:
		t.Errorf("the caller hears %v before the reader hears that the stream has ended", err)
	case <-time.After(20 * time.Millisecond):
		testutil.NoError(t, a.CloseSend())
		testutil.Equal(t, tunnel.LostInFlight(<-outcome), true, "it was lost in flight")
	}
	testutil.Equal(t, a.peer.Streams(), 0, "streams are left")
}

func TestUnusualDialAnswers(t *testing.T) {
	r := newRig(t, Limits{})
	a := r.rawAgent(t)
	failure := func(answer func(random int64) *client.Packet) tunnel.Failure {
		random, outcome := a.dial(t.Context())
		a.send(answer(random))
		return tunnel.FailureOf((<-outcome).err)
	}
	response := func(id int64, text string) func(int64) *client.Packet {
		return func(random int64) *client.Packet { return dialResponse(random, id, text) }
	}
	const refusal = "dial tcp 10.0.0.1:80: connect: connection refused"
	testutil.Equal(t, failure(response(0, "")), tunnel.FailInternal, "success without a connection")
	testutil.Equal(t, failure(response(0, refusal)), tunnel.FailRefused, "an old agent's refusal")
	testutil.Equal(t, failure(dialClose), tunnel.FailCancelled, "DIAL_CLS by the agent")
	first := a.accept(t.Context(), 5)
	testutil.Equal(t, failure(response(5, "")), tunnel.FailInternal, "a connection's number given twice")
	a.send(dataPacket(5, []byte("still here")))
	testutil.Succeeds(t, testutil.Err(io.ReadFull(first, make([]byte, 10))), "the first of two with one number")
	a.send(closeResponse(5, "broken"))
	testutil.ErrorIs(t, testutil.Err(first.Read(make([]byte, 1))), syscall.ECONNRESET, "an end that the agent gives an error")
	for _, kind := range []client.PacketType{42, client.PacketType_CLOSE_RSP, client.PacketType_DIAL_RSP, client.PacketType_DATA, client.PacketType_CLOSE_REQ} {
		a.send(&client.Packet{Type: kind}) // of the future, without its part, or the wrong way
	}
	_ = a.accept(t.Context(), 6).Reset(nil) // the stream still works
	_ = a.want(client.PacketType_CLOSE_REQ)
	a.send(closeResponse(6, ""))
	testutil.Eventually(t, "nothing is left", func() bool { return a.peer.Streams() == 0 })
}

func TestAgentMetadataIsChecked(t *testing.T) {
	r := newRig(t, Limits{})
	for name, c := range map[string]struct {
		md   []string
		want codes.Code
	}{
		"no id":           {nil, codes.InvalidArgument},
		"two ids":         {[]string{"agentID", "a", "agentID", "b"}, codes.InvalidArgument},
		"two identifiers": {[]string{"agentID", "a", "agentIdentifiers", "x", "agentIdentifiers", "y"}, codes.InvalidArgument},
		"two tokens":      {[]string{"agentID", "a", "Authorization", "Bearer x", "Authorization", "Bearer y"}, codes.InvalidArgument},
		"not a bearer":    {[]string{"agentID", "a", "Authorization", "Basic x"}, codes.Unauthenticated},
	} {
		ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(t.Context(), c.md...), patience)
		stream, err := r.connect(true).NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, connectFullMethod)
		if err == nil {
			err = stream.RecvMsg(&client.Packet{})
		}
		testutil.Equal(t, status.Code(err), c.want, "%s: %v", name, err)
		cancel()
	}
}

func TestServerHeaderIsChecked(t *testing.T) {
	for name, md := range map[string]metadata.MD{
		"none":           {},
		"no count":       metadata.Pairs("serverID", "a"),
		"two ids":        metadata.Pairs("serverID", "a", "serverID", "b", "serverCount", "1"),
		"not a number":   metadata.Pairs("serverID", "a", "serverCount", "many"),
		"negative count": metadata.Pairs("serverID", "a", "serverCount", "-1"),
	} {
		_, _, err := parseServerHeader(md)
		testutil.Fails(t, err, "%s", name)
	}
	id, n, err := parseServerHeader(serverHeader("a", 0, false))
	testutil.NoError(t, err)
	testutil.Equal(t, fmt.Sprint(id, " of ", n), "a of 1", "one that tells no count")
}

// An answer to a dial that was given up, or never asked, brings a connection
// that is not taken: its bytes must not stay in the agents' budget.
func TestUntakenAnswerHoldsNoBudget(t *testing.T) {
	limits := Limits{}.withDefaults()
	p := newTestPeer(&script{ctx: t.Context()}, false, limits)
	random, dial, err := p.startDial(tunnel.NewFlow("tcp", "a:1"))
	testutil.NoError(t, err)
	p.handle(dialResponse(random, 7, ""))
	p.mux.get(7).receive([]tunnel.Chunk{tunnel.CopyChunk(pattern(5000))})
	testutil.AtLeast(t, limits.Budget.Used(), 1, "what was received: the test shows nothing")
	testutil.Equal(t, p.giveUp(random, dial), false, "the dial is given up, which was answered")
	testutil.Equal(t, limits.Budget.Used(), 0, "bytes of the budget are lost")
	p.finish(nil)
}

// A network that the protocol cannot carry, which clients by link may ask for, fails that dial
// alone: gRPC would end the agent's stream over a text that is no UTF-8, with all its
// connections. Upstream's agents dial whatever else they are asked for, such as UDP.
func TestOnlyTCPIsAskedFor(t *testing.T) {
	a := newRig(t, Limits{}).rawAgent(t)
	for _, network := range []string{"\xff", "udp", "unix", ""} {
		err := testutil.Err(a.peer.Dial(t.Context(), tunnel.NewFlow(network, "a:1")))
		testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailBadAddress, "%q", network)
	}
	err := testutil.Err(a.peer.Dial(t.Context(), tunnel.NewFlow("tcp", "\xff:1")))
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailBadAddress, "no UTF-8")
	_ = a.accept(t.Context(), 1).Close()
	a.want(client.PacketType_CLOSE_REQ)
	a.send(closeResponse(1, ""))
}
