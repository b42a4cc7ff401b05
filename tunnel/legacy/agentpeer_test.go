package legacy

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"

	"sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"
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
	if err != nil || len(md.Get("serverID")) != 1 || len(md.Get("serverCount")) != 1 {
		t.Fatalf("header %v, %v", md, err)
	}
	if len(md.Get(keyDuplex)) != 0 {
		t.Error("half-close is offered to an agent that did not")
	}
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
	if request.Protocol != "tcp" || request.Address != "a:1" {
		a.t.Errorf("asked for %v", request)
	}
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
	if id := a.want(client.PacketType_CLOSE_REQ).GetCloseRequest().ConnectID; id != 7 {
		t.Errorf("closed %d", id)
	}
	a.send(dialResponse(12346, 0, "refused")) // nothing to close
	a.send(dataPacket(99, []byte("x")))
	if id := a.want(client.PacketType_CLOSE_REQ).GetCloseRequest().ConnectID; id != 99 {
		t.Errorf("DATA for an unknown connection: closed %d", id)
	}
	if n := r.metrics.unknown.Load(); n != 2 {
		t.Errorf("counted %d unknown dial responses", n)
	}
}

// Whoever hears that the agent of a dial is lost finds its stream over, and so need not take it
// for one that is still there.
func TestTheStreamIsOverOnceItsDialsFail(t *testing.T) {
	a := newRig(t, Limits{}).rawAgent(t)
	const many = 300 // the first hear it while the last have yet to be told
	var dials sync.WaitGroup
	for range many {
		dials.Go(func() {
			_, err := a.peer.Dial(t.Context(), tunnel.NewFlow("tcp", "a:1"))
			if there := a.peer.Life().Err() == nil; there || tunnel.FailureOf(err) != tunnel.FailAgentLost {
				t.Errorf("%v; the stream is there: %t", err, there)
			}
		})
	}
	eventually(t, "all dials are pending", func() bool { return a.peer.Streams() == many })
	testutil.NoError(t, a.CloseSend())
	dials.Wait()
	if _, err := a.peer.Dial(t.Context(), tunnel.NewFlow("tcp", "a:1")); tunnel.FailureOf(err) != tunnel.FailAgentLost {
		t.Errorf("a dial afterwards: %v", err)
	}
}

func TestCancelledDialClosesLateConnection(t *testing.T) {
	r := newRig(t, Limits{})
	a := r.rawAgent(t)
	ctx, cancel := context.WithCancel(t.Context())
	random, outcome := a.dial(ctx)
	cancel()
	if got := <-outcome; tunnel.FailureOf(got.err) != tunnel.FailCancelled {
		t.Errorf("the caller hears %v", got.err)
	}
	if got := a.want(client.PacketType_DIAL_CLS).GetCloseDial().Random; got != random {
		t.Errorf("gave up %d, want %d", got, random)
	}
	a.send(dialResponse(random, 31, ""))
	if id := a.want(client.PacketType_CLOSE_REQ).GetCloseRequest().ConnectID; id != 31 {
		t.Errorf("closed %d", id)
	}
	if a.peer.Streams() != 0 {
		t.Errorf("%d streams are left", a.peer.Streams())
	}
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
		if err := <-outcome; !tunnel.LostInFlight(err) {
			t.Errorf("the caller hears %v", err)
		}
	}
	if n := a.peer.Streams(); n != 0 {
		t.Errorf("%d streams are left", n)
	}
}

func TestUnusualDialAnswers(t *testing.T) {
	r := newRig(t, Limits{})
	a := r.rawAgent(t)
	failure := func(answer func(random int64) *client.Packet) tunnel.Failure {
		random, outcome := a.dial(t.Context())
		a.send(answer(random))
		return tunnel.FailureOf((<-outcome).err)
	}
	if f := failure(func(random int64) *client.Packet { return dialResponse(random, 0, "") }); f != tunnel.FailInternal {
		t.Errorf("success without a connection: %v", f)
	}
	if f := failure(func(random int64) *client.Packet {
		return dialResponse(random, 0, "dial tcp 10.0.0.1:80: connect: connection refused")
	}); f != tunnel.FailRefused {
		t.Errorf("an old agent's refusal: %v", f)
	}
	if f := failure(dialClose); f != tunnel.FailCancelled {
		t.Errorf("DIAL_CLS by the agent: %v", f)
	}
	first := a.accept(t.Context(), 5)
	if f := failure(func(random int64) *client.Packet { return dialResponse(random, 5, "") }); f != tunnel.FailInternal {
		t.Errorf("a connection's number given twice: %v", f)
	}
	a.send(dataPacket(5, []byte("still here")))
	if _, err := io.ReadFull(first, make([]byte, 10)); err != nil {
		t.Errorf("the first of two with one number: %v", err)
	}
	a.send(closeResponse(5, ""))
	for _, kind := range []client.PacketType{42, client.PacketType_CLOSE_RSP, client.PacketType_DIAL_RSP, client.PacketType_DATA, client.PacketType_CLOSE_REQ} {
		a.send(&client.Packet{Type: kind}) // of the future, without its part, or the wrong way
	}
	_ = a.accept(t.Context(), 6).Reset(nil) // the stream still works
	_ = a.want(client.PacketType_CLOSE_REQ)
	a.send(closeResponse(6, ""))
	eventually(t, "nothing is left", func() bool { return a.peer.Streams() == 0 })
}

// What the agent had sent is read before its CLOSE_RSP, and then EOF.
func TestEverythingSentIsDeliveredBeforeTheEnd(t *testing.T) {
	r := newRig(t, Limits{})
	a := r.rawAgent(t)
	c := a.accept(t.Context(), 1)
	for range 100 {
		a.send(dataPacket(1, pattern(4096)))
	}
	a.send(closeResponse(1, ""))
	eventually(t, "the end has arrived", func() bool { return a.peer.Streams() == 0 })
	if got, err := io.ReadAll(c); err != nil || len(got) != 100*4096 {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("a write after the end was accepted")
	}
	if err := c.CloseWrite(); err != nil {
		t.Errorf("CloseWrite after the end: %v", err)
	}
}

func TestClosingSendsDataFirst(t *testing.T) {
	r := newRig(t, Limits{})
	a := r.rawAgent(t)
	c := a.accept(t.Context(), 1)
	sent := time.Now() // or a moment later
	_, _ = c.Write([]byte("last words"))
	_ = c.Close()
	if got := a.want(client.PacketType_DATA).GetData(); string(got.Data) != "last words" {
		t.Errorf("got %v", got)
	}
	a.want(client.PacketType_CLOSE_REQ)
	if early := time.Since(sent); early < settleTime/2 {
		t.Errorf("CLOSE_REQ came %v after the data; an old agent would drop that", early)
	}
	a.send(dataPacket(1, []byte("ignored"))) // on its way when the agent learned of it
	a.send(closeResponse(1, ""))
	eventually(t, "it is gone", func() bool { return a.peer.Streams() == 0 })
	if n := r.metrics.packets[ToAgent][client.PacketType_CLOSE_REQ+1].Load(); n != 1 {
		t.Errorf("%d CLOSE_REQs", n)
	}
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
		if status.Code(err) != c.want {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
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
		if _, _, err := parseServerHeader(md); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if id, n, err := parseServerHeader(serverHeader("a", 0, false)); id != "a" || n != 1 || err != nil {
		t.Errorf("%q, %d, %v", id, n, err)
	}
}

// An agent that floods with answers to dials that were not made, and does not read,
// does not fill the memory with the replies.
func TestUnrequestedAnswersAreCapped(t *testing.T) {
	p := newTestPeer(&script{ctx: t.Context()}, false, Limits{}.withDefaults())
	for i := range int64(2 * maxControl) {
		p.handle(dialResponse(i, i+1, ""))
	}
	if n := len(p.mux.sender.control); n != maxControl {
		t.Errorf("%d packets wait, want %d", n, maxControl)
	}
	p.finish(nil)
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
	if limits.Budget.Used() == 0 {
		t.Fatal("nothing was received: the test shows nothing")
	}
	if p.giveUp(random, dial) {
		t.Error("the answer was overlooked")
	}
	if used := limits.Budget.Used(); used != 0 {
		t.Errorf("%d bytes of the budget are lost", used)
	}
	p.finish(nil)
}

// A network that the protocol cannot carry, which clients by link may ask for, fails that dial
// alone: gRPC would end the agent's stream over a text that is no UTF-8, with all its
// connections. Upstream's agents dial whatever else they are asked for, such as UDP.
func TestOnlyTCPIsAskedFor(t *testing.T) {
	a := newRig(t, Limits{}).rawAgent(t)
	for _, network := range []string{"\xff", "udp", "unix", ""} {
		if _, err := a.peer.Dial(t.Context(), tunnel.NewFlow(network, "a:1")); tunnel.FailureOf(err) != tunnel.FailBadAddress {
			t.Errorf("%q: %v", network, err)
		}
	}
	if _, err := a.peer.Dial(t.Context(), tunnel.NewFlow("tcp", "\xff:1")); tunnel.FailureOf(err) != tunnel.FailBadAddress {
		t.Errorf("an address that is no UTF-8: %v", err)
	}
	_ = a.accept(t.Context(), 1).Close()
	a.want(client.PacketType_CLOSE_REQ)
	a.send(closeResponse(1, ""))
}
