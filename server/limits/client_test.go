package limits

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/big"
	"math/rand/v2"
	"net/url"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/server/tenant"
	"konnectivity/tunnel"
	"konnectivity/tunnel/shares"
)

// at is a client's address.
func at(n int) tunnel.Addr { return tunnel.Addr{Text: fmt.Sprintf("192.0.2.%d:1", n)} }

func newLimits(budget int64) *Limits {
	return New(shares.NewBudget(budget), shares.NewBudget(1<<20), 0, 0, 0)
}

// start starts and ends a dial of a client, whose connection stays open.
func (t *Tenant) start(tt *testing.T, c *tunnel.Client, r *tunnel.Resume) error {
	f := tunnel.NewFlow("tcp", "x:1")
	f.Client, f.Resume = c, r
	done, err := t.Start(tt.Context(), f)
	if err == nil {
		done()
	}
	return err
}

// A certificate that is renewed under the same names is the same client. With other
// names it is another one, though its key is the same.
func TestClientIsACertificateAtAnAddress(t *testing.T) {
	red, blue := &url.URL{Scheme: "spiffe", Host: "fleet.test", Path: "/red"}, &url.URL{Scheme: "spiffe", Host: "fleet.test", Path: "/blue"}
	client := func(from, key string, names ...*url.URL) clientKey {
		cert := &x509.Certificate{RawSubjectPublicKeyInfo: []byte(key), URIs: names, SerialNumber: big.NewInt(rand.Int64())}
		return clientKeyOf("", &tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}, tunnel.Addr{Text: from})
	}
	was := client("192.0.2.1:1", "k", red)
	for name, c := range map[string]struct {
		who  clientKey
		same bool
	}{
		"renewed":         {client("192.0.2.1:2", "k", red), true},
		"another URI":     {client("192.0.2.1:1", "k", blue), false},
		"one URI more":    {client("192.0.2.1:1", "k", red, blue), false},
		"another key":     {client("192.0.2.1:1", "l", red), false},
		"another address": {client("192.0.2.2:1", "k", red), false},
	} {
		testutil.Equal(t, c.who == was, c.same, "%s: the same client", name)
	}
	token := func(who tunnel.Identity) clientKey { return clientKeyOf(who, nil, at(1)) }
	testutil.Equal(t, token("a"), token("a"), "the client of one token")
	testutil.Equal(t, token("a") == token("b"), false, "two tokens at one address: the same client")
}

// All connections of a client have one Client, which goes with the last of them. A
// tenant that is removed and made anew has Clients of its own.
func TestClientsGoWithTheirConnections(t *testing.T) {
	all := newLimits(1 << 20)
	is, was := all.Tenant("a"), all.Tenant("a")
	first, leave := is.Join("", nil, at(1))
	again, leaveAgain := is.Join("", nil, at(1))
	other, leaveOther := is.Join("", nil, at(2))
	old, leaveOld := was.Join("", nil, at(1))
	testutil.Holds(t, first == again && first != other && first != old && first.Tenant == "a",
		"clients and connections do not match")
	for _, f := range []func(){leave, leaveAgain, leaveOther, leaveOld} {
		if again, leave := is.Join("", nil, at(1)); again != first {
			t.Error("a client has another Client while it is connected")
		} else {
			defer leave()
		}
		f()
	}
	is, was = all.Tenant("b"), all.Own()
	_, leave = is.Join("", nil, at(1))
	leave()
	testutil.Equal(t, is.connected.Len()+was.connected.Len(), 0, "clients that are left")
}

// A client is told in words that its share is used up, and other programs read the
// kind of failure from them, by CONNECT too.
func TestShareIsNamedAsTheCause(t *testing.T) {
	testutil.Equal(t, tunnel.GuessFailure(ShareUsedUp), tunnel.FailExhausted, "%q is read as", ShareUsedUp)
}

// A dial is counted until it has ended, and what its connection takes until that ends.
func TestWhatIsTakenIsGivenBack(t *testing.T) {
	for front, memory := range map[string]int64{"grpc": ConnMemory, "connect": ClientMemory + ConnMemory} {
		all := New(shares.NewBudget(1<<20), shares.NewBudget(1<<20), 0, 0, 100)
		c, leave := all.Own().Join("", nil, at(1))
		defer leave()
		f := tunnel.NewFlow("tcp", "x:1")
		f.Client, f.Front = c, front
		done := testutil.Must(all.Own().Start(t.Context(), f))(t)
		testutil.NoError(t, TakeSocket(f))
		testutil.Equal(t, all.PendingDials(), 1, "%s: dials under way", front)
		testutil.Equal(t, c.Sockets.Used(), 1, "%s: sockets", front)
		done()
		testutil.Equal(t, all.PendingDials(), 0, "%s: dials that have ended", front)
		testutil.Equal(t, c.Budget.Used(), memory, "%s: bytes for a connection", front)
		ended(f)
		testutil.Equal(t, c.Budget.Used(), 0, "%s: bytes after the end", front)
		testutil.Equal(t, c.Sockets.Used(), 0, "%s: sockets after the end", front)
	}
}

// A dial whose client has no memory left is refused, and not counted.
func TestDialsWithoutMemoryAreRefused(t *testing.T) {
	all := newLimits(1 << 20)
	c, leave := all.Own().Join("", nil, at(1))
	defer leave()
	for c.Budget.Take(ConnMemory) {
	}
	testutil.Equal(t, tunnel.FailureOf(all.Own().start(t, c, nil)), tunnel.FailExhausted, "a dial without memory")
	testutil.Equal(t, all.PendingDials(), 0, "dials under way")
}

// A client whose dials have used up its share resumes its connections all the same.
func TestResumingHasAShareOfItsOwn(t *testing.T) {
	own := newLimits(1 << 20).Own()
	c, leave := own.Join("", nil, at(1))
	defer leave()
	for c.Dials.Take(1) {
	}
	testutil.Equal(t, tunnel.FailureOf(own.start(t, c, &tunnel.Resume{Window: time.Second})), tunnel.FailExhausted,
		"a dial beyond the share")
	testutil.Succeeds(t, own.start(t, c, &tunnel.Resume{Window: time.Second, Epoch: 1}), "a connection that exists is refused for dials that hang")
}

// Tenants have equal parts of what there is, however many clients they have.
func TestTenantsShareFirst(t *testing.T) {
	all := newLimits(1 << 20)
	manys, singles := all.Tenant("many"), all.Tenant("single")
	var many []*tunnel.Client
	for i := range 100 {
		c, leave := manys.Join("", nil, at(i))
		defer leave()
		many = append(many, c)
	}
	single, leave := singles.Join("", nil, at(1))
	defer leave()
	for what, take := range map[string]func(*tunnel.Client) bool{
		"dials":   func(c *tunnel.Client) bool { return c.Dials.Take(1) },
		"resumes": func(c *tunnel.Client) bool { return c.Resumes.Take(1) },
		"memory":  func(c *tunnel.Client) bool { return c.Budget.Take(256) },
	} {
		one, hundred := 0, 0
		for more := true; more; {
			more = false
			for range 100 { // both ask as often
				if more = take(single); more {
					one++
				}
			}
			for _, c := range many {
				if take(c) {
					hundred++
					more = true
				}
			}
		}
		testutil.Holds(t, hundred <= one*5/4 && one <= hundred*5/4,
			"%s: a hundred clients have %d, one has %d", what, hundred, one)
	}
}

// A tenant that has the memory it may is told so; another is not held up, and the
// bound may change.
func TestMemoryOfATenantIsBounded(t *testing.T) {
	all := newLimits(64 << 20)
	bounded, other := all.Tenant("bounded"), all.Tenant("other")
	bounded.SetBounds(tenant.Bounds{MemoryMiB: 1})
	c, leave := bounded.Join("", nil, at(1))
	defer leave()
	n := 0
	var err error
	for ; err == nil; n++ {
		err = bounded.start(t, c, nil)
	}
	testutil.Holds(t, tunnel.FailureOf(err) == tunnel.FailBound && n <= 1<<20/ConnMemory+1 && n >= 1<<20/ConnMemory*3/4,
		"after %d connections of %d bytes within 1 MiB: %v", n, ConnMemory, err)
	free, leaveFree := other.Join("", nil, at(1))
	defer leaveFree()
	testutil.Succeeds(t, other.start(t, free, nil), "another tenant")
	bounded.SetBounds(tenant.Bounds{})
	testutil.Succeeds(t, bounded.start(t, c, nil), "without the bound")
}

// An agent that asks for ever more connections leaves some for others, also where they
// have one certificate and one address. Its tenant leaves some for other tenants.
func TestAgentsShareSockets(t *testing.T) {
	all := New(shares.NewBudget(1<<20), shares.NewBudget(1<<20), 0, 0, 100)
	crowded, calm := all.Tenant("crowded"), all.Tenant("calm")
	take := func(of *Tenant, id string) (n int, err error) {
		c, leave := of.JoinAgent(id, "", nil, at(1))
		t.Cleanup(leave)
		for ; err == nil; n++ {
			f := tunnel.NewFlow("tcp", "x:1")
			f.Client = c
			err = TakeSocket(f)
		}
		return n - 1, err
	}
	greedy, err := take(crowded, "greedy")
	testutil.Holds(t, tunnel.FailureOf(err) == tunnel.FailExhausted && greedy >= 50 && greedy <= 95,
		"one alone has %d, then: %v", greedy, err)
	for _, of := range []*Tenant{crowded, calm} {
		n, _ := take(of, "modest")
		testutil.Holds(t, n >= 1, "another agent of the tenant %s has %d", of.name, n)
	}
}

// What connections count for is what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	const page = "../../docs/security.md"
	testutil.Says(t, page, "At the server a connection counts as %v KiB", ConnMemory>>10)
	testutil.Says(t, page, "a client's own link, gRPC or CONNECT connection, and a gRPC stream, as %v KiB each", ClientMemory>>10)
	testutil.Equal(t, StreamMemory, ClientMemory, "a gRPC stream, beside a connection")
	testutil.Says(t, page, "certificates as what they take beyond %v KiB", usualCerts>>10)
	testutil.Says(t, page, "One counts as %v KiB, each of its identifiers as %v KiB", AgentMemory>>10, IdentifierMemory>>10)
	testutil.Says(t, page, "the dials that began less than %v ms ago", youngFor.Milliseconds())
}
