package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	pb "sigs.k8s.io/apiserver-network-proxy/konnectivity-client/proto/client"

	"konnectivity/internal/testutil"
	"konnectivity/server/limits"
	"konnectivity/server/registry"
	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

// hang starts n dials on one link, of what flow returns, where nobody answers. When all are
// under way or refused, it returns the errors of the refused ones.
func (r *rig) hang(hog *link.Session, n int, flow func() *tunnel.Flow) (refused []error) {
	r.t.Helper()
	ctx, giveUp := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	r.t.Cleanup(func() { giveUp(); wg.Wait() })
	failed := make(chan error, n)
	for range n {
		wg.Go(func() {
			if _, err := hog.Dial(ctx, flow()); ctx.Err() == nil {
				failed <- err
			}
		})
	}
	testutil.Within(r.t, 2*time.Minute, "all dials are under way or refused", func() bool { // thousands
		return len(failed)+int(r.limits.PendingDials()) == n
	})
	for range len(failed) {
		refused = append(refused, <-failed)
	}
	return refused
}

func silent() *tunnel.Flow { return tunnel.NewFlow("tcp", "silent:1") }

// TestHangingDialsLeaveRoomForOthers: a client whose dials nobody answers is
// told when it has its share; others dial on, by agents of both kinds.
func TestHangingDialsLeaveRoomForOthers(t *testing.T) {
	testutil.EachOf(t, agentKinds, func(t *testing.T, kind string) {
		r := startServer(t, func(o *Options) { o.DialTimeout = time.Hour }) // the test ends them
		r.agent(kind, agentHello{id: "a"}, echoing)
		hog := testutil.Must(r.clientLink())(t)
		refused := r.hang(hog, link.MaxDials, silent)
		testutil.Requires(t, len(refused) != 0, "one client may have all dials there are")
		var dial *tunnel.DialError
		if !errors.As(refused[0], &dial) || dial.Failure != tunnel.FailExhausted || !strings.Contains(dial.Text(), "this client's share is used up: it has ") {
			t.Errorf("the client that has its share is told %v", refused[0])
		}
		for _, other := range clientKinds {
			for range 10 {
				r.mustDial(other, "echo:1").Close()
			}
		}
		_ = hog.Close()
		r.eventually("all is given back", func() bool { return r.limits.PendingDials() == 0 })
	})
}

// streams opens n streams on one gRPC connection that ask for nothing, and
// returns how those ended that have.
func (r *rig) streams(ctx context.Context, n int) (ended []error) {
	r.t.Helper()
	conn := testutil.Must(grpc.NewClient(r.tcp, grpc.WithTransportCredentials(credentials.NewTLS(r.tls()))))(r.t)
	r.t.Cleanup(func() { conn.Close() })
	done := make(chan error, n)
	for i := range n {
		by := ctx
		if i == 0 { // which proves that the client is no stranger, who may send less
			by = r.t.Context()
		}
		stream := testutil.Must(pb.NewProxyServiceClient(conn).Proxy(by))(r.t)
		go func() {
			_, err := stream.Recv()
			done <- err
		}()
		if i == 0 {
			r.eventually("the first stream is open or refused", func() bool { return len(done)+r.byGRPC[clients].service.Streams() > 0 })
		}
	}
	r.eventually("all streams are open or refused", func() bool { return len(done)+r.byGRPC[clients].service.Streams() == n })
	for range len(done) {
		ended = append(ended, <-done)
	}
	return ended
}

// TestStreamsTakeOfTheBudget: idle gRPC streams count as the memory they are.
// Who has too many is told, others find room, and all is given back.
func TestStreamsTakeOfTheBudget(t *testing.T) {
	const max = 4 << 20 // an eighth is left to others: with 2 MiB, these would take all of it
	r := startServer(t, func(o *Options) { o.Budget = link.NewBudget(max) })
	r.agent("link", agentHello{id: "a"}, echoing)
	refused := r.streams(t.Context(), 300)
	if held := 300 - len(refused); held > max/limits.StreamMemory || held < max/limits.StreamMemory*3/4 {
		t.Errorf("%d streams of %d bytes each are open, %d fit", held, limits.StreamMemory, max/limits.StreamMemory)
	}
	for _, err := range refused {
		testutil.Requires(t, status.Code(err) == codes.ResourceExhausted &&
			strings.Contains(err.Error(), "--memory-budget-mib"), "a stream that there is no room for ends with %v", err)
	}
	r.hasMetrics(`stream_errors_total{code="ResourceExhausted",packet_type="Unknown",segment="from_client"} ` + strconv.Itoa(len(refused)))
	for _, kind := range clientKinds {
		r.roundTrip(r.mustDial(kind, "echo:1"), 100)
	}
}

// fullOfNames is ctx with a header that has as many names as gRPC takes.
func fullOfNames(ctx context.Context) context.Context {
	var pairs []string
	for i := range maxMetadata / 40 { // each counts 32 bytes beside its name (RFC 9113 §6.5.2)
		pairs = append(pairs, "n"+strconv.Itoa(i), "")
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

// TestMetadataTakesOfTheBudget: a stream's header counts as the memory that it takes,
// which may be much more than the stream.
func TestMetadataTakesOfTheBudget(t *testing.T) {
	t.Parallel() // it waits
	const max = 2 << 20
	r := startServer(t, func(o *Options) { o.Budget = link.NewBudget(max) })
	refused := r.streams(fullOfNames(t.Context()), 50)
	if held := 50 - len(refused); held < 5 || held > 12 { // of some 230 KiB each
		t.Errorf("%d streams are open whose headers are full", held)
	}
	r.givesBack(r.opts.Budget.Used)
}

// TestConnectionsTakeOfTheBudget: by every front, and are given back.
func TestConnectionsTakeOfTheBudget(t *testing.T) {
	testutil.EachOf(t, clientKinds, func(t *testing.T, kind string) {
		r := startServer(t, func(o *Options) { o.Budget = link.NewBudget(1 << 20) })
		r.agent("link", agentHello{id: "a"}, echoing)
		before := r.opts.Budget.Used()
		c := r.mustDial(kind, "echo:1")
		testutil.AtLeast(t, r.opts.Budget.Used(), before+limits.ConnMemory,
			"bytes that are used beside an open connection")
		for range 20 {
			if c, err := r.dial(kind, "refused:1"); err == nil {
				c.Close()
			}
		}
		c.Close()
		r.givesBack(r.opts.Budget.Used)
	})
}

// TestALinkWithoutRoomIsRefused, with the reason.
func TestALinkWithoutRoomIsRefused(t *testing.T) {
	r := startServer(t, func(o *Options) { o.Budget = link.NewBudget(limits.ClientMemory) })
	config := r.tls(link.ALPN)
	for i := range 2 {
		_, err := r.clientLinkAs(config, link.Hello{Role: link.RoleClient})
		var refusal *link.GoAwayError
		testutil.Holds(t, i != 1 || errors.As(err, &refusal) && refusal.Text == limits.ShareUsedUp,
			"a link for which there is no room: %v", err)
	}
}

// The clients' half of the descriptors is for all ports together.
func TestPortsDivideTheDescriptors(t *testing.T) {
	for _, tc := range []struct{ descriptors, ports, want int }{
		{0, 2, 0}, {1024, 1, 512}, {1024, 2, 256}, {1024, 3, 170}, {2, 2, 1}, {1, 4, 1},
	} {
		testutil.Equal(t, shareOfPort(tc.descriptors, tc.ports), tc.want,
			"one of %d ports of %d descriptors", tc.ports, tc.descriptors)
	}
}

// A client that completes its messages has none of its memory taken by them.
func TestCompleteMessagesHoldNothing(t *testing.T) {
	r := startServer(t)
	r.agent("link", agentHello{id: "a"}, echoing)
	for _, kind := range []string{"grpc-tls", "grpc-uds"} {
		c := r.mustDial(kind, "echo:1")
		for _, n := range []int{1, 100, 5000, 100000, 1 << 20} {
			r.roundTrip(c, n)
		}
		r.eventually("all was handed over", func() bool { return r.grpc.Budget.Used() == 0 })
	}
}

// Agents' connections take memory by being there, as do their identifiers; one that
// there is none left for hears so, and all is given back.
func TestAgentsTakeOfTheirRoom(t *testing.T) {
	t.Parallel() // it waits
	const max = 20 * limits.AgentMemory
	testutil.EachOf(t, []string{"link", "grpc"}, func(t *testing.T, kind string) {
		t.Parallel()
		r := startServer(t, func(o *Options) { o.AgentMemory = max })
		var many strings.Builder
		for i := range max / limits.IdentifierMemory {
			fmt.Fprintf(&many, "host=%d.test&", i)
		}
		if _, err := r.tryAgent(kind, agentHello{id: "a", identifiers: many.String()}, echoing); err == nil || !strings.Contains(err.Error(), errNoAgentRoom.Reason) {
			t.Errorf("an agent with many identifiers: %v", err)
		}
		testutil.Equal(t, r.limits.Agents.Used(), 0, "bytes that one who was refused keeps")
		in := 0
		for i := range 24 {
			if _, err := r.tryAgent(kind, agentHello{id: fmt.Sprint("a", i)}, echoing); err == nil {
				in++
			}
		}
		testutil.Between(t, in, 15, 20, "agents got in, of %d that there is room for", max/limits.AgentMemory)
		r.roundTrip(r.mustDial("link", "echo:1"), 100)
		r.givesBack(r.limits.Agents.Used)
	})
}

// So does an agent's header.
func TestAgentsHeadersTakeOfTheirRoom(t *testing.T) {
	const max = 40 * limits.AgentMemory
	r := startServer(t, func(o *Options) { o.AgentMemory = max })
	conn, err := grpc.NewClient(r.agentAt, grpc.WithTransportCredentials(credentials.NewTLS(r.tls())),
		grpc.WithStreamInterceptor(func(ctx context.Context, d *grpc.StreamDesc, c *grpc.ClientConn, method string, open grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return open(fullOfNames(ctx), d, c, method, opts...)
		}))
	testutil.NoError(t, err)
	defer conn.Close()
	s := testutil.Must(legacy.ConnectAgent(t.Context(), conn, legacy.AgentConfig{ID: "a", Forwarder: forwarder(echoing)}))(t)
	testutil.AtLeast(t, r.limits.Agents.Used(), limits.AgentMemory+128<<10, "bytes of an agent whose header is full")
	_ = s.Close()
	r.eventually("all is given back", func() bool { return r.limits.Agents.Used() == 0 })
}

// stuffed is a certificate that is full of names.
func stuffed(t *testing.T) []byte {
	t.Helper()
	names := bytes.Repeat([]byte{0x86, 0}, 1<<10)
	key := testutil.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), ExtraExtensions: []pkix.Extension{{
		Id: []int{2, 5, 29, 17}, Value: append([]byte{0x30, 0x82, byte(len(names) >> 8), byte(len(names))}, names...),
	}}}
	return testutil.Must(x509.CreateCertificate(rand.Reader, template, template, key.Public(), key))(t)
}

// What a client's certificates take beyond what is usual counts as its memory.
func TestCertificatesTakeOfTheBudget(t *testing.T) {
	const max = 1 << 20
	r := startServer(t, func(o *Options) { o.Budget = link.NewBudget(max) })
	usual := r.tls(link.ALPN)
	leaf := testutil.Must(x509.ParseCertificate(usual.Certificates[0].Certificate[0]))(t)
	extra := limits.CertMemory(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf, leaf, leaf}})
	testutil.Holds(t, extra == 0, "an ordinary chain takes %d bytes more than is usual", extra)
	heavy := usual.Clone()
	heavy.Certificates[0].Certificate = append(heavy.Certificates[0].Certificate, stuffed(t))
	in := 0
	for range 20 {
		if _, err := r.clientLinkAs(heavy, link.Hello{Role: link.RoleClient}); err == nil {
			in++
		}
	}
	testutil.Holds(t, in >= 3 && in <= 7, "%d links got in", in) // of some 170 KiB each
	r.givesBack(r.opts.Budget.Used)
}

// Bounds are what the pages say.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../docs/security.md"
	testutil.Says(t, page, "%v for each connection; one that asks for no connection", maxStreams)
	testutil.Says(t, page, "A message of an agent has at most %v KiB", maxAgentMessage>>10)
	testutil.Says(t, page, "agents' metadata %v KiB", maxMetadata>>10)
	testutil.Says(t, page, "a stream's header as what it takes beyond %v KiB", usualMetadata>>10)
	testutil.Says(t, page, "by a token review, has %v s more", int64((judgeTimeout+tellTime)/time.Second))
	testutil.Says(t, page, "they have %v routes and identifiers together", maxTold)
	testutil.Says(t, page, "waited for 3 s, %v MiB of its answer", maxState>>20)
	const operations = "../docs/operations.md"
	testutil.Says(t, operations, "After %v s it no longer waits", int64(leaveTime/time.Second))
	testutil.Says(t, operations, "Until %v s after the first one, or %v s after the", int64(DefaultSettle/time.Second), int64(firstAgent/time.Second))
	testutil.Says(t, operations, "serves waits up to %v s for one that does", int64(registry.Patience/time.Second))
	testutil.Says(t, operations, "(up to %v s after a server's first agent, %v s where one was lost)", int64(DefaultSettle/time.Second), int64(tunnel.BackTime/time.Second))
	testutil.Says(t, operations, "dials wait up to %v s for the next one", int64(tunnel.BackTime/time.Second))
	testutil.Says(t, operations, "told to stop and then killed are reset %v s later", int64(tunnel.BackTime/time.Second))
	const tenants = "../docs/tenants.md"
	testutil.Says(t, tenants, "the server tries again every %v s", int64(retryListen/time.Second))
	testutil.Says(t, tenants, "for up to %v ms, then reads for %v ms", holdMost.Milliseconds(), freeTime.Milliseconds())
	testutil.Says(t, tenants, "then after %v s, then 2 s, up to %v s", int64(restFirst/time.Second), int64(restMost/time.Second))
	testutil.Says(t, tenants, "pause for %v ms every %v s", fairLook.Milliseconds(), int64(unheldFor/time.Second))
}
