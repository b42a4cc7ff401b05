package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"math/rand/v2"
	"net/netip"
	"net/url"
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

	"konnectivity/tunnel"
	"konnectivity/tunnel/legacy"
	"konnectivity/tunnel/link"
)

// hang starts n dials of one client that nobody answers, and returns how they
// failed, as far as they have, once all are under way or refused.
func (r *rig) hang(hog *link.Session, n int) (refused []error) {
	r.t.Helper()
	ctx, giveUp := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	r.t.Cleanup(func() { giveUp(); wg.Wait() })
	failed := make(chan error, n)
	for range n {
		wg.Go(func() {
			if _, err := hog.Dial(ctx, tunnel.NewFlow("tcp", "silent:1")); ctx.Err() == nil {
				failed <- err
			}
		})
	}
	r.eventually("all dials are under way or refused", func() bool {
		return len(failed)+int(r.accounts.dials.Used()) == n
	})
	for range len(failed) {
		refused = append(refused, <-failed)
	}
	return refused
}

// TestHangingDialsLeaveRoomForOthers: a client whose dials nobody answers is
// told when it has its share; others dial on, by agents of both kinds.
func TestHangingDialsLeaveRoomForOthers(t *testing.T) {
	for _, kind := range agentKinds {
		t.Run(kind, func(t *testing.T) {
			r := startServer(t, func(o *Options) { o.DialTimeout = time.Hour }) // the test ends them
			r.agent(kind, agentHello{id: "a"}, echoing)
			hog, err := r.clientLink()
			if err != nil {
				t.Fatal(err)
			}
			refused := r.hang(hog, link.MaxDials)
			if len(refused) == 0 {
				t.Fatal("one client may have all dials there are")
			}
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
			r.eventually("all is given back", func() bool { return r.accounts.dials.Used() == 0 })
		})
	}
}

// streams opens n streams on one gRPC connection that ask for nothing, and
// returns how those ended that have.
func (r *rig) streams(n int) (ended []error) {
	r.t.Helper()
	return r.streamsBy(r.t.Context(), n)
}

func (r *rig) streamsBy(ctx context.Context, n int) (ended []error) {
	r.t.Helper()
	conn, err := grpc.NewClient(r.tcp, grpc.WithTransportCredentials(credentials.NewTLS(r.tls())))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { conn.Close() })
	done := make(chan error, n)
	for i := range n {
		by := ctx
		if i == 0 { // which proves that the client is no stranger, who may send less
			by = r.t.Context()
		}
		stream, err := pb.NewProxyServiceClient(conn).Proxy(by)
		if err != nil {
			r.t.Fatal(err)
		}
		go func() {
			_, err := stream.Recv()
			done <- err
		}()
		if i == 0 {
			r.eventually("the first stream is open or refused", func() bool { return len(done)+r.proxyService.Streams() > 0 })
		}
	}
	r.eventually("all streams are open or refused", func() bool { return len(done)+r.proxyService.Streams() == n })
	for range len(done) {
		ended = append(ended, <-done)
	}
	return ended
}

// TestStreamsTakeOfTheBudget: idle gRPC streams count as the memory they are.
// Who has too many is told, others find room, and all is given back.
func TestStreamsTakeOfTheBudget(t *testing.T) {
	const max = 2 << 20
	r := startServer(t, func(o *Options) { o.Budget = link.NewBudget(max) })
	r.agent("link", agentHello{id: "a"}, echoing)
	refused := r.streams(300)
	if held := 300 - len(refused); held > max/streamMemory || held < max/streamMemory*3/4 {
		t.Errorf("%d streams of %d bytes each are open, %d fit", held, streamMemory, max/streamMemory)
	}
	for _, err := range refused {
		if status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "--memory-budget-mib") {
			t.Fatalf("a stream that there is no room for ends with %v", err)
		}
	}
	if !r.metric(`stream_errors_total{code="ResourceExhausted",packet_type="Unknown",segment="from_client"} ` + strconv.Itoa(len(refused))) {
		t.Error("they are not counted")
	}
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
	const max = 2 << 20
	r := startServer(t, func(o *Options) { o.Budget = link.NewBudget(max) })
	refused := r.streamsBy(fullOfNames(t.Context()), 50)
	if held := 50 - len(refused); held < 5 || held > 12 { // of some 230 KiB each
		t.Errorf("%d streams are open whose headers are full", held)
	}
	r.stop()
	if err := r.wait(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if used := r.opts.Budget.Used(); used != 0 {
		t.Errorf("%d bytes are not given back", used)
	}
}

// TestConnectionsTakeOfTheBudget: by every front, and are given back.
func TestConnectionsTakeOfTheBudget(t *testing.T) {
	for _, kind := range clientKinds {
		t.Run(kind, func(t *testing.T) {
			r := startServer(t, func(o *Options) { o.Budget = link.NewBudget(1 << 20) })
			r.agent("link", agentHello{id: "a"}, echoing)
			before := r.opts.Budget.Used()
			c := r.mustDial(kind, "echo:1")
			if r.opts.Budget.Used() < before+connMemory {
				t.Error("an open connection takes nothing")
			}
			for range 20 {
				if c, err := r.dial(kind, "refused:1"); err == nil {
					c.Close()
				}
			}
			c.Close()
			r.stop()
			if err := r.wait(20 * time.Second); err != nil {
				t.Fatal(err)
			}
			if used := r.opts.Budget.Used(); used != 0 {
				t.Errorf("%d bytes are not given back", used)
			}
		})
	}
}

// TestALinkWithoutRoomIsRefused, with the reason.
func TestALinkWithoutRoomIsRefused(t *testing.T) {
	r := startServer(t, func(o *Options) { o.Budget = link.NewBudget(clientMemory) })
	config := r.tls(link.ALPN)
	for i := range 2 {
		c, err := tls.Dial("tcp", r.tcp, config)
		if err != nil {
			t.Fatal(err)
		}
		ses, err := link.Connect(t.Context(), c, link.Config{Hello: link.Hello{Role: link.RoleClient}})
		var refusal *link.GoAwayError
		if i == 1 && (!errors.As(err, &refusal) || refusal.Text != noMemory) {
			t.Errorf("a link for which there is no room: %v", err)
		}
		if ses != nil {
			defer ses.Close()
		}
	}
}

// A client's id is listed with every link, so it is no longer than an agent's.
func TestLongIDsOfClientsAreRefused(t *testing.T) {
	r := startServer(t)
	for length, want := range map[int]bool{512: true, 513: false} {
		_, err := r.clientLinkAs(r.tls(link.ALPN), link.Hello{Role: link.RoleClient, ID: strings.Repeat("i", length)})
		if (err == nil) != want {
			t.Errorf("an id of %d bytes: %v", length, err)
		}
	}
}

// A certificate that is renewed under the same names is the same client. With other
// names it is another one, though its key is the same.
func TestClientIsACertificateAtAnAddress(t *testing.T) {
	red, blue := &url.URL{Scheme: "spiffe", Host: "fleet.test", Path: "/red"}, &url.URL{Scheme: "spiffe", Host: "fleet.test", Path: "/blue"}
	client := func(from, tenant, key string, names ...*url.URL) identity {
		cert := &x509.Certificate{RawSubjectPublicKeyInfo: []byte(key), URIs: names, SerialNumber: big.NewInt(rand.Int64())}
		who, found := identityOf(&tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}, tunnel.Addr{Text: from}, tenant)
		for i, name := range found {
			if name != names[i].String() {
				t.Errorf("%v has the names %v", names, found)
			}
		}
		return who
	}
	was := client("192.0.2.1:1", "t", "k", red)
	for name, c := range map[string]struct {
		who  identity
		same bool
	}{
		"renewed":         {client("192.0.2.1:2", "t", "k", red), true},
		"another URI":     {client("192.0.2.1:1", "t", "k", blue), false},
		"one URI more":    {client("192.0.2.1:1", "t", "k", red, blue), false},
		"another key":     {client("192.0.2.1:1", "t", "l", red), false},
		"another address": {client("192.0.2.2:1", "t", "k", red), false},
		"another tenant":  {client("192.0.2.1:1", "u", "k", red), false},
	} {
		if (c.who == was) != c.same {
			t.Errorf("%s: the same client: %v", name, !c.same)
		}
	}
}

// TestAccountsGoWithTheirClients: one for all connections of a client, none
// after the last.
func TestAccountsGoWithTheirClients(t *testing.T) {
	all := newAccounts(link.NewBudget(1<<20), legacy.NewBudget(1<<20))
	a, b := identity{from: netip.MustParsePrefix("192.0.2.1/32")}, identity{}
	first, leave := all.join(a, nil, all.parts)
	again, leaveAgain := all.join(a, nil, all.parts)
	other, leaveOther := all.join(b, nil, all.parts)
	if first != again || first == other {
		t.Error("accounts and clients do not match")
	}
	for _, f := range []func(){leave, leaveAgain, leaveOther} {
		f()
	}
	if len(all.known) != 0 {
		t.Errorf("%d accounts are left", len(all.known))
	}
}

// A tenant that is removed and made anew has bounds of its own, also while
// connections of the old one have not ended.
func TestAccountsAreOfTheTenantThatIs(t *testing.T) {
	all := newAccounts(link.NewBudget(1<<20), legacy.NewBudget(1<<20))
	who := identity{tenant: "a"}
	was, is := all.tenant("a"), all.tenant("a")
	old, leaveOld := all.join(who, nil, was)
	first, leave := all.join(who, nil, is)
	if first == old {
		t.Error("the new tenant's client has of what the old one had")
	}
	leaveOld()
	if again, leaveAgain := all.join(who, nil, is); again != first {
		t.Error("the old tenant's client has taken the new one's account along")
	} else {
		leaveAgain()
	}
	if leave(); len(all.known) != 0 {
		t.Errorf("%d accounts are left", len(all.known))
	}
}

// What a client hears when its share is used up tells it that, and other
// programs what kind of failure it is, by CONNECT too.
func TestShareIsNamedAsTheCause(t *testing.T) {
	if got := tunnel.GuessFailure(noMemory); got != tunnel.FailExhausted {
		t.Errorf("%q is read as %v", noMemory, got)
	}
}

// The clients' half of the descriptors is for all ports together.
func TestPortsDivideTheDescriptors(t *testing.T) {
	for _, tc := range []struct{ descriptors, ports, want int }{
		{0, 2, 0}, {1024, 1, 512}, {1024, 2, 256}, {1024, 3, 170}, {2, 2, 1}, {1, 4, 1},
	} {
		if got := shareOfPort(tc.descriptors, tc.ports); got != tc.want {
			t.Errorf("one of %d ports of %d descriptors has %d, want %d", tc.ports, tc.descriptors, got, tc.want)
		}
	}
}

// A client whose dials have used up its share resumes its connections all the
// same.
func TestResumingHasAShareOfItsOwn(t *testing.T) {
	all := newAccounts(link.NewBudget(1<<20), legacy.NewBudget(1<<20))
	acct, leave := all.join(identity{}, nil, all.parts)
	defer leave()
	for acct.Dials.Take(1) {
	}
	s := &Server{turns: newTurns()}
	dial := func(r *tunnel.Resume) error {
		f := tunnel.NewFlow("tcp", "x:1")
		f.Resume, f.Client = r, acct
		done, err := s.share(t.Context(), f)
		if err == nil {
			done()
		}
		return err
	}
	if err := dial(&tunnel.Resume{Window: time.Second}); tunnel.FailureOf(err) != tunnel.FailExhausted {
		t.Errorf("a dial beyond the share: %v", err)
	}
	if err := dial(&tunnel.Resume{Window: time.Second, Epoch: 1}); err != nil {
		t.Errorf("a connection that exists is refused for dials that hang: %v", err)
	}
}

// Tenants have equal parts of what there is, however many clients they have.
func TestTenantsShareFirst(t *testing.T) {
	all := newAccounts(link.NewBudget(1<<20), legacy.NewBudget(1<<20))
	manys, singles := all.tenant("many"), all.tenant("single")
	var many []*tunnel.Client
	var leaves []func()
	for i := range 100 {
		acct, leave := all.join(identity{tenant: "many", from: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), 32)}, nil, manys)
		many, leaves = append(many, acct), append(leaves, leave)
	}
	single, leave := all.join(identity{tenant: "single"}, nil, singles)
	leaves = append(leaves, leave)
	for what, take := range map[string]func(*tunnel.Client) bool{
		"dials":   func(a *tunnel.Client) bool { return a.Dials.Take(1) },
		"resumes": func(a *tunnel.Client) bool { return a.Resumes.Take(1) },
		"memory":  func(a *tunnel.Client) bool { return a.Budget.Take(256) },
	} {
		one, hundred := 0, 0
		for more := true; more; {
			more = false
			for range 100 { // both ask as often
				if more = take(single); more {
					one++
				}
			}
			for _, acct := range many {
				if take(acct) {
					hundred++
					more = true
				}
			}
		}
		if hundred > one*5/4 || one > hundred*5/4 {
			t.Errorf("%s: a hundred clients have %d, one has %d", what, hundred, one)
		}
	}
	for _, leave := range leaves {
		leave()
	}
	if len(all.known) != 0 {
		t.Errorf("%d accounts are left", len(all.known))
	}
}

// A tenant that has the memory it may is told so; another is not held up, and the
// bound may change.
func TestMemoryOfATenantIsBounded(t *testing.T) {
	all := newAccounts(link.NewBudget(64<<20), legacy.NewBudget(1<<20))
	bounded := all.tenant("bounded")
	bounded.budget.Bound(1 << 20)
	s := &Server{turns: newTurns()}
	dial := func(name string, of parts) error {
		acct, leave := all.join(identity{tenant: name}, nil, of)
		defer leave()
		f := tunnel.NewFlow("tcp", "x:1")
		f.Client = acct
		done, err := s.share(t.Context(), f)
		if err == nil {
			done()
		}
		return err
	}
	n := 0
	var err error
	for ; err == nil; n++ {
		err = dial("bounded", bounded)
	}
	if tunnel.FailureOf(err) != tunnel.FailBound || n > 1<<20/connMemory+1 || n < 1<<20/connMemory*3/4 {
		t.Errorf("after %d connections of %d bytes within 1 MiB: %v", n, connMemory, err)
	}
	if err := dial("other", all.tenant("other")); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	bounded.budget.Bound(0)
	if err := dial("bounded", bounded); err != nil {
		t.Errorf("without the bound: %v", err)
	}
}
