package link_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/link"
)

// chain is two links joined by a Forwarder, as client, server and agent are,
// over real TLS and toward real TCP. Links can be killed; a new one
// takes their place.
type chain struct {
	t             testing.TB
	budget        *link.Budget
	client, relay atomic.Pointer[link.Session] // toward the server, and from it toward the agent

	mu       sync.Mutex
	sessions []*link.Session // all there ever were
	conns    []net.Conn      // under them
}

func newChain(t testing.TB) *chain {
	c := &chain{t: t, budget: link.NewBudget(256 << 20)}
	c.replace(0)
	c.replace(1)
	return c
}

// replace starts link i, 0 from the client to the server or 1 from the agent.
func (c *chain) replace(i int) {
	near, far := tlsPair(c.t) // buffered, so that links deliver to each other
	var dialer tunnel.Dialer
	if i == 0 {
		dialer = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			return c.relay.Load().Dial(ctx, f)
		})
	} else {
		dialer = tunnel.DialerFunc(func(ctx context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			conn, err := (&net.Dialer{}).DialContext(ctx, f.Network, f.Address)
			if err != nil {
				return nil, tunnel.AsDialError(f.Address, err)
			}
			return tunnel.Wrap(conn), nil
		})
	}
	serve := &tunnel.Forwarder{Dialer: dialer, Bounds: tunnel.Bounds{Linger: 5 * time.Second}}
	accepted := make(chan *link.Session, 1)
	go func() {
		cfg := link.Config{Hello: link.Hello{Role: link.RoleServer}, Budget: c.budget, Forwarder: serve}
		ses, err := link.Accept(context.Background(), far, cfg)
		if err != nil {
			c.t.Errorf("accept: %v", err)
		}
		accepted <- ses
	}()
	role := []link.Role{link.RoleClient, link.RoleAgent}[i]
	a, err := link.Connect(context.Background(), near, link.Config{Hello: link.Hello{Role: role}, Budget: c.budget, Forwarder: serve})
	b := <-accepted
	if err != nil || b == nil {
		c.t.Fatalf("link %d: %v", i, err)
	}
	c.mu.Lock()
	c.sessions = append(c.sessions, a, b)
	c.conns = append(c.conns, near.(*tls.Conn).NetConn(), far.(*tls.Conn).NetConn())
	c.mu.Unlock()
	if i == 0 {
		c.client.Store(a)
	} else {
		c.relay.Store(b)
	}
}

// kill cuts one of the newest links without a word, at one of its ends, and has
// another take its place, unless one has.
func (c *chain) kill(rnd *rand.Rand) {
	c.mu.Lock()
	victim := len(c.conns) - 1 - rnd.IntN(min(4, len(c.conns)))
	conn, ends := c.conns[victim], c.sessions[victim&^1:(victim|1)+1]
	c.mu.Unlock()
	_ = conn.Close()
	for i, ses := range []*link.Session{c.client.Load(), c.relay.Load()} {
		if slices.Contains(ends, ses) {
			<-ses.Done() // however late on a busy machine
			c.replace(i)
		}
	}
}

// end closes every link that ever was, and checks that none holds anything.
func (c *chain) end() {
	c.t.Helper()
	for _, ses := range c.sessions {
		_ = ses.Close()
	}
	testutil.Eventually(c.t, "no stream, no unread byte and nothing of the budget is left", func() bool {
		return c.budget.Used() == 0 && !slices.ContainsFunc(c.sessions, func(ses *link.Session) bool {
			return ses.Streams() != 0 || ses.Stats().Unread != 0
		})
	})
}

// newTargets are the addresses of real TCP servers, by what these do.
func newTargets(t testing.TB) map[string]string {
	return map[string]string{
		"echo": testutil.Echo(t),
		"hash": testutil.Serve(t, func(c *net.TCPConn) { // answers when the client has ended
			h := sha256.New()
			if _, err := io.Copy(h, c); err == nil {
				_, _ = c.Write(h.Sum(nil))
			}
		}),
		"reset": testutil.Serve(t, func(c *net.TCPConn) {
			_ = c.SetDeadline(time.Now().Add(20 * time.Millisecond))
			_, _ = io.CopyN(io.Discard, c, 1000)
			_ = c.SetLinger(0)
		}),
		"deaf":    testutil.Serve(t, func(*net.TCPConn) { time.Sleep(50 * time.Millisecond) }),
		"endless": testutil.Serve(t, func(c *net.TCPConn) { writeOn(c) }),
	}
}

// descriptors is how many sockets this process has open. Other descriptors do
// not count: the standard library keeps pipes for splice until it collects.
func descriptors(t testing.TB) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip(err)
	}
	n := 0
	for _, e := range entries {
		if to, _ := os.Readlink("/proc/self/fd/" + e.Name()); strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}

// orderly says that an error is one a client may see of a fault we caused.
func orderly(err error) bool {
	var dial *tunnel.DialError
	var reset *tunnel.ResetError
	return err == nil || errors.Is(err, io.EOF) || errors.As(err, &dial) || errors.As(err, &reset) ||
		errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, net.ErrClosed)
}

// visit does one thing with one connection and checks what it sees of it.
func (c *chain) visit(rnd *rand.Rand, targets map[string]string) error {
	names := []string{"echo", "echo", "hash", "hash", "reset", "deaf", "endless"}
	name := names[rnd.IntN(len(names))]
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	if rnd.IntN(5) == 0 {
		ctx, cancel = context.WithTimeout(context.Background(), time.Duration(rnd.IntN(2000))*time.Microsecond)
	}
	defer cancel()
	conn, err := c.client.Load().Dial(ctx, tunnel.NewFlow("tcp", targets[name]))
	if err != nil {
		time.Sleep(10 * time.Millisecond) // a link may be on its way back
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	payload := make([]byte, rnd.IntN(1<<uint(4+rnd.IntN(16))))
	for i := range payload {
		payload[i] = byte(rnd.Uint32())
	}
	fault := rnd.IntN(12)
	if fault < 3 { // one side gives up in the middle
		time.AfterFunc(time.Duration(rnd.IntN(3000))*time.Microsecond, func() {
			switch fault {
			case 0:
				_ = conn.Reset(&tunnel.ResetError{Code: tunnel.CodeCancelled})
			case 1:
				_ = conn.Close()
			default:
				_ = conn.SetDeadline(time.Now())
			}
		})
	}
	switch name {
	case "echo", "hash":
		err = c.exchange(rnd, conn, name, payload)
	default:
		_, err = conn.Write(payload)
		if _, rerr := io.CopyN(io.Discard, conn, int64(rnd.IntN(1<<20))); err == nil {
			err = rerr
		}
	}
	if errors.Is(err, os.ErrDeadlineExceeded) && fault != 2 {
		c.t.Errorf("%s hung for %v", name, patience)
	}
	return err
}

// exchange sends payload, ends, and expects the answer to it; bytes before an error must
// be right, too.
func (c *chain) exchange(rnd *rand.Rand, conn tunnel.Conn, name string, payload []byte) error {
	want := payload
	if name == "hash" {
		sum := sha256.Sum256(payload)
		want = sum[:]
	}
	stall := time.Duration(rnd.IntN(4)) * time.Millisecond
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() {
		half := len(payload) / 2
		_, _ = conn.Write(payload[:half])
		time.Sleep(stall)
		if _, err := conn.Write(payload[half:]); err == nil {
			_ = conn.CloseWrite()
		}
	})
	time.Sleep(stall)
	got, err := io.ReadAll(conn)
	if err == nil && !bytes.Equal(got, want) {
		c.t.Errorf("%s ended in order after %d of %d bytes, or with wrong ones", name, len(got), len(want))
	}
	if err != nil && name == "echo" && !bytes.HasPrefix(want, got) {
		c.t.Errorf("echo gave wrong bytes before %v", err)
	}
	return err
}

// TestSoak runs a second or two; LINK_SOAK=10m runs it longer, and LINK_SEED
// repeats a run's choices.
func TestSoak(t *testing.T) {
	duration, seed := 2*time.Second, uint64(time.Now().UnixNano())
	if v := os.Getenv("LINK_SOAK"); v != "" {
		var err error
		if duration, err = time.ParseDuration(v); err != nil {
			t.Fatal(err)
		}
	}
	if v := os.Getenv("LINK_SEED"); v != "" {
		seed, _ = strconv.ParseUint(v, 10, 64)
	}
	t.Logf("LINK_SEED=%d", seed)
	noLeaks(t)
	targets := newTargets(t)
	before := descriptors(t)
	c := newChain(t)

	var wg sync.WaitGroup
	var done, failed atomic.Int64
	end := time.Now().Add(duration)
	// Where the machine takes longer than a link lives, nothing succeeds until
	// the last was killed.
	going := func() bool {
		now := time.Now()
		return now.Before(end) || done.Load() == failed.Load() && now.Before(end.Add(patience))
	}
	for i := range uint64(40) {
		rnd := rand.New(rand.NewPCG(seed, i))
		wg.Go(func() {
			for going() && !t.Failed() {
				err := c.visit(rnd, targets)
				done.Add(1)
				if err != nil {
					failed.Add(1)
				}
				if !orderly(err) {
					t.Errorf("a client saw %v", err)
				}
			}
		})
	}
	rnd := rand.New(rand.NewPCG(seed, 1000))
	for kills := 0; time.Now().Before(end); kills++ {
		time.Sleep(time.Duration(rnd.IntN(700)) * time.Millisecond)
		c.kill(rnd)
	}
	wg.Wait()
	idle, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := errors.Join(c.client.Load().WaitIdle(idle), c.relay.Load().WaitIdle(idle)); err != nil {
		t.Errorf("streams stay: %d and %d", c.client.Load().Streams(), c.relay.Load().Streams())
	}
	c.end()
	t.Logf("%d connections, %d with an error, %d links", done.Load(), failed.Load(), len(c.sessions)/2)
	if done.Load() == failed.Load() {
		t.Error("nothing succeeded")
	}
	testutil.Eventually(t, "descriptors back at their base", func() bool { return descriptors(t) <= before })
}
