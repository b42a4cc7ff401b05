package egress

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/policy"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/race"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// patience is how long may take what takes moments on an idle machine.
const patience = time.Minute

// names is a Resolver with fixed answers.
type names map[string][]string

func (n names) LookupNetIP(_ context.Context, network, host string) ([]netip.Addr, error) {
	texts, ok := n[host]
	if !ok {
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	var addrs []netip.Addr
	for _, text := range texts {
		addr := netip.MustParseAddr(text)
		if network == "ip" || (network == "ip4") == addr.Is4() {
			addrs = append(addrs, addr)
		}
	}
	return addrs, nil
}

// echo listens on host:port and echoes; port 0 picks one, at which all other
// addresses of this machine refuse.
func echo(t *testing.T, host string, port int) int {
	t.Helper()
	if port == 0 {
		port = testutil.Reserved(t)
	}
	testutil.ServeAt(t, net.JoinHostPort(host, fmt.Sprint(port)), func(c *net.TCPConn) {
		// Not (c, c): splice would keep pipes, and they count as open files.
		_, _ = io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
	})
	return port
}

func dial(t *testing.T, d *Dialer, address string) (tunnel.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel() // the connection outlives it
	return d.Dial(ctx, tunnel.NewFlow("tcp", address))
}

// dialsWithin wants a dial to succeed within a bound. One must, of those that begin within
// a minute: in others this machine may do other work.
func dialsWithin(t *testing.T, bound time.Duration, d *Dialer, address string) {
	t.Helper()
	var took []time.Duration
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		start := time.Now()
		c := testutil.Must(dial(t, d, address))(t)
		took = append(took, time.Since(start))
		wantEcho(t, c)
		if slices.Min(took) <= bound {
			return
		}
	}
	t.Errorf("%s: the dials took %v, want %v", address, took, bound)
}

func wantEcho(t *testing.T, c tunnel.Conn) {
	t.Helper()
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	testutil.Must(c.Write([]byte("hello")))(t)
	testutil.NoError(t, c.CloseWrite())
	got, err := io.ReadAll(c)
	testutil.Requires(t, err == nil && string(got) == "hello", "echo gave %q, %v", got, err)
}

func wantFailure(t *testing.T, err error, want tunnel.Failure) {
	t.Helper()
	var typed *tunnel.DialError
	testutil.Requires(t, errors.As(err, &typed) && typed.Failure == want, "got %v, want a DialError: %v", err, want)
	testutil.Holds(t, typed.Address != "", "the error names no address: %v", err)
}

func TestDial(t *testing.T) {
	port := fmt.Sprint(echo(t, "127.0.0.1", 0))
	d := New(Options{resolver: names{"a.example": {"127.0.0.1"}}})
	for _, host := range []string{"127.0.0.1", "a.example", "[::ffff:127.0.0.1]"} {
		c, err := dial(t, d, host+":"+port)
		testutil.Requires(t, err == nil, "%s: %v", host, err)
		wantEcho(t, c)
	}
}

// The last of five addresses is alive, the others swallow packets: within 3 s.
func TestLastOfFiveAddresses(t *testing.T) {
	port := echo(t, "127.0.0.6", 0)
	addrs := []string{"127.0.0.2", "127.0.0.3", "127.0.0.4", "127.0.0.5"}
	for _, a := range addrs {
		testutil.Silent(t, a, port)
	}
	d := New(Options{resolver: names{"five.example": append(addrs, "127.0.0.6")}})
	dialsWithin(t, 3*time.Second, d, fmt.Sprintf("five.example:%d", port))
}

// A refused address must not cost a stagger.
func TestRefusedMovesOn(t *testing.T) {
	const refusals = maxAddresses - 1
	var addrs []string
	for i := range refusals + 1 {
		addrs = append(addrs, fmt.Sprintf("127.0.0.%d", 2+i))
	}
	port := echo(t, addrs[refusals], 0)
	d := New(Options{resolver: names{"many.example": addrs}})
	dialsWithin(t, refusals/2*race.Stagger, d, fmt.Sprintf("many.example:%d", port))
}

func TestFailures(t *testing.T) {
	closed := testutil.Refusing(t)
	_, port, _ := net.SplitHostPort(closed)
	d := New(Options{resolver: names{"a.example": {"127.0.0.1", "127.0.0.2"}, "empty.example": nil, "v4.example": {"127.0.0.1"}}})
	for _, c := range []struct {
		network, address string
		want             tunnel.Failure
	}{
		{"tcp", closed, tunnel.FailRefused},
		{"tcp", "a.example:" + port, tunnel.FailRefused},
		{"tcp", "unknown.example:80", tunnel.FailNoSuchHost},
		{"tcp", "empty.example:80", tunnel.FailNoSuchHost},
		{"tcp6", "v4.example:80", tunnel.FailNoSuchHost},
		{"tcp6", "127.0.0.1:80", tunnel.FailBadAddress},
		{"udp", "127.0.0.1:80", tunnel.FailBadAddress},
		{"", "127.0.0.1:80", tunnel.FailBadAddress},
		{"tcp", "127.0.0.1", tunnel.FailBadAddress},
		{"tcp", ":80", tunnel.FailBadAddress},
		{"tcp", "a b:80", tunnel.FailBadAddress},
		{"tcp", "127.0.0.1:0", tunnel.FailBadAddress},
		{"tcp", "169.254.169.254:80", tunnel.FailDenied},
	} {
		_, err := d.Dial(testutil.Context(t), tunnel.NewFlow(c.network, c.address))
		testutil.Equal(t, tunnel.FailureOf(err), c.want, "%s %s: %v", c.network, c.address, err)
	}
}

func TestTimeoutAndCancel(t *testing.T) {
	port := echo(t, "127.0.0.30", 0) // only to own a port number
	testutil.Silent(t, "127.0.0.31", port)
	d := New(Options{})
	address := fmt.Sprintf("127.0.0.31:%d", port)

	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_, err := d.Dial(ctx, tunnel.NewFlow("tcp", address))
	wantFailure(t, err, tunnel.FailTimeout)

	ctx, cancel = context.WithCancel(context.Background())
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err = d.Dial(ctx, tunnel.NewFlow("tcp", address))
	wantFailure(t, err, tunnel.FailCancelled)
}

// Cancelled dials leave neither goroutines (goleak) nor sockets.
func TestCancelLeavesNothing(t *testing.T) {
	port := echo(t, "127.0.0.1", 0)
	d := New(Options{resolver: names{"a.example": {"127.0.0.1", "127.0.0.2", "127.0.0.3"}}})
	before := openFiles(t)
	for i := range 300 {
		ctx, cancel := context.WithCancel(context.Background())
		go func() { time.Sleep(time.Duration(i) * time.Microsecond); cancel() }()
		if c, err := d.Dial(ctx, tunnel.NewFlow("tcp", fmt.Sprintf("a.example:%d", port))); err == nil {
			_ = c.Close()
		}
		cancel()
	}
	testutil.Eventually(t, "all files are closed", func() bool { return openFiles(t) <= before })
}

func openFiles(t *testing.T) int {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	return len(files)
}

func TestPolicyOnResolvedAddress(t *testing.T) {
	port := echo(t, "127.0.0.1", 0)
	rules := testutil.Must(policy.Parse(nil, []string{"127.0.0.2/32", "named.example"}))(t)
	d := New(Options{Policy: rules, resolver: names{
		"mixed.example": {"127.0.0.2", "127.0.0.1"}, "denied.example": {"127.0.0.2"}, "named.example": {"127.0.0.1"}, "meta.example": {"169.254.169.254"},
	}})
	c, err := dial(t, d, fmt.Sprintf("mixed.example:%d", port))
	testutil.Requires(t, err == nil, "the allowed one of two addresses: %v", err)
	wantEcho(t, c)
	for _, host := range []string{"denied.example", "named.example", "meta.example", "127.0.0.2"} {
		_, err := dial(t, d, fmt.Sprintf("%s:%d", host, port))
		wantFailure(t, err, tunnel.FailDenied)
	}
}

// A connection that is to be resumed is judged as a dial is: by its name and by the address
// that it is connected to, or by its name alone where a proxy resolves that.
func TestAllow(t *testing.T) {
	rules := testutil.Must(policy.Parse(nil, []string{"127.0.0.2/32", "named.example"}))(t)
	d := New(Options{Policy: rules, Proxy: func(u *url.URL) (*url.URL, error) {
		if strings.HasPrefix(u.Hostname(), "far") {
			return &url.URL{Scheme: "http", Host: "127.0.0.2:3128"}, nil
		}
		return nil, nil
	}})
	for _, c := range []struct {
		address, connected string
		denied             bool
	}{
		{"a.example:80", "127.0.0.1", false},
		{"a.example:80", "127.0.0.2", true},
		{"a.example:80", "169.254.169.254", true},
		{"named.example:80", "127.0.0.1", true},
		{"127.0.0.1:80", "127.0.0.1", false},
		{"127.0.0.2:80", "127.0.0.1", true},
		{"far.example:80", "127.0.0.2", false},
		{"far.named.example:80", "127.0.0.2", false},
	} {
		f, at := tunnel.NewFlow("tcp", c.address), &net.TCPAddr{IP: net.ParseIP(c.connected), Port: 80}
		err := d.Allow(f, at)
		testutil.Equal(t, err != nil, c.denied, "%s at %s is denied (%v)", c.address, c.connected, err)
		testutil.Holds(t, err == nil || tunnel.FailureOf(err) == tunnel.FailDenied, "%s at %s: %v", c.address, c.connected, err)
		f.Far = at
		testutil.Equal(t, d.Still(f) != nil, c.denied, "%s at %s, open, is denied", c.address, c.connected)
	}
	testutil.Fails(t, d.Allow(tunnel.NewFlow("tcp", "a.example:80"), tunnel.Addr{Net: "tcp", Text: "pipe"}), "at an address that cannot be judged")
}

// A resolver that answers differently each time must not get a denied address
// connected, and neither may anything between the check and the socket: the
// last gate is the socket's own.
func TestPolicyAtTheSocket(t *testing.T) {
	port := echo(t, "127.0.0.1", 0)
	rules, err := policy.Parse(nil, []string{"127.0.0.1"})
	testutil.NoError(t, err)
	d := New(Options{Policy: rules})
	to := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(port))
	_, err = d.race(context.Background(), held{flow: tunnel.NewFlow("tcp", "rebind.example:80"), host: "rebind.example", flags: rules}, []netip.AddrPort{to})
	testutil.Equal(t, tunnel.FailureOf(err), tunnel.FailDenied, "%v: it", err)
}

type flipping struct{ calls atomic.Int64 }

func (f *flipping) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	if f.calls.Add(1)%2 == 1 {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
	}
	return []netip.Addr{netip.MustParseAddr("169.254.169.254")}, nil
}

func TestRebinding(t *testing.T) {
	port := echo(t, "127.0.0.1", 0)
	d := New(Options{resolver: &flipping{}})
	for i := range 4 {
		c, err := dial(t, d, fmt.Sprintf("rebind.example:%d", port))
		if i%2 == 0 {
			testutil.NoError(t, err)
			wantEcho(t, c)
		} else {
			wantFailure(t, err, tunnel.FailDenied)
		}
	}
}

func TestManyAddressesAreCapped(t *testing.T) {
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprintf("127.0.1.%d", i+1))
	}
	d := New(Options{resolver: names{"huge.example": all}})
	addrs, err := d.resolve(context.Background(), held{host: "huge.example", port: 80}, "ip")
	testutil.Holds(t, err == nil && len(addrs) == maxAddresses, "%d addresses, %v", len(addrs), err)
}
