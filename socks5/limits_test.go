package socks5

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"konnectivity/internal/admission"
	"konnectivity/internal/front"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// Everything is in memory, where a connection has no deadline that thousands of
// others on a busy machine could make it miss.
func TestHalfOpenHandshakesDoNotKeepOthersOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const silent, limit = 2000, 1500
		s := newServer(t, Options{Options: front.Options{MaxConns: limit}, handshakeTimeout: time.Hour}, mirrored)
		var all sync.WaitGroup
		join := func() net.Conn {
			c, conn := net.Pipe()
			all.Go(func() { s.serveConn(t.Context(), tunnel.Wrap(conn)) })
			return c
		}
		relayed := func() net.Conn {
			c := join()
			testutil.NoError(t, through(c, "mirror:1", nil))
			return c
		}
		settled := relayed()
		half := make([]net.Conn, silent)
		for i := range half {
			half[i] = join()
			_, _ = half[i].Write([]byte("\x05\x01"))
			if i%200 == 0 {
				_ = relayed().Close()
			}
		}
		_ = relayed().Close()
		_, _ = settled.Write([]byte("still here"))
		testutil.Succeeds(t, testutil.Err(io.ReadFull(settled, make([]byte, 10))), "a relayed connection")
		testutil.AtMost(t, s.Slots.Count(), limit, "connections that are open")
		// The oldest had to go, the newest are still welcome.
		testutil.Fails(t, testutil.Err(half[0].Read(make([]byte, 1))), "the oldest half-open connection")
		testutil.Succeeds(t, testutil.Err(half[silent-1].Write([]byte("\x00"))), "a write by the newest one")
		testutil.Succeeds(t, testutil.Err(io.ReadFull(half[silent-1], make([]byte, 2))), "a read by the newest one")
		for _, c := range append(half, settled) {
			_ = c.Close()
		}
		all.Wait()
		testutil.Equal(t, s.Slots.Count(), 0, "slots after the last connection")
	})
}

// mirrored reaches, in memory, a target that sends back what it gets.
var mirrored = tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
	near, far := net.Pipe()
	go func() {
		_, _ = io.Copy(far, far)
		_ = far.Close()
	}()
	return tunnel.Wrap(near), nil
})

func TestRelayedConnectionsAreNeverEvicted(t *testing.T) {
	log, lines := logBuffer()
	s := serve(t, Options{Options: front.Options{MaxConns: 3, Log: log}}, direct)
	address := testutil.Echo(t)
	var open []*net.TCPConn
	for range 3 {
		open = append(open, mustThrough(t, s, address))
	}
	for range 5 {
		testutil.Equal(t, tryThrough(s, address), false, "a fourth connection got in")
	}
	testutil.Equal(t, promtest.ToFloat64(s.Metrics.Refused.WithLabelValues(front.ReasonLimit)), 5, "refusals")
	testutil.Equal(t, strings.Count(lines.String(), "limit of open SOCKS5 connections"), 1, "warnings")
	_ = open[0].Close()
	testutil.Eventually(t, "the free slot is used", func() bool { return tryThrough(s, address) })
	_, _ = open[1].Write([]byte("x"))
	testutil.Succeeds(t, testutil.Err(io.ReadFull(open[1], make([]byte, 1))), "an open connection")
}

func TestSlotsAreGivenBack(t *testing.T) {
	s := serve(t, Options{Options: front.Options{MaxConns: 2}}, failing(tunnel.FailRefused))
	for range 50 {
		c := connect(t, s.addr)
		err := through(c, "gone:1", nil)
		_ = c.Close()
		testutil.Eventually(t, "its slot is free", func() bool { return s.Slots.Count() < 2 })
		testutil.ErrorSays(t, err, "refused", "the destination's refusal")
	}
	testutil.Eventually(t, "nothing is open", func() bool { return s.Slots.Count() == 0 })
	s.Slots.Waiting(func(*client) { t.Error("a connection that has ended is still in its handshake") })
}

// tryThrough says whether a connection gets in; a refused one may be reset at
// any moment.
func tryThrough(s *serving, address string) bool {
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		return false
	}
	defer c.Close()
	return through(c, address, nil) == nil
}

// shortListener fails twice before each connection it accepts; with dry set,
// it only ever accepts that many.
type shortListener struct {
	net.Listener
	fail  error
	dry   int32
	tries atomic.Int32
}

func (l *shortListener) Accept() (net.Conn, error) {
	if n := l.tries.Add(1); n%3 != 0 || l.dry > 0 && n > 3*l.dry {
		return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", l.fail)}
	}
	return l.Listener.Accept()
}

func TestShortageTakesTheOldestHandshake(t *testing.T) {
	ln := &shortListener{Listener: testutil.Listen(t), fail: syscall.EMFILE, dry: 1}
	s := serveOn(t, newServer(t, Options{handshakeTimeout: time.Hour}, direct), ln)
	start := time.Now()
	c := connect(t, s.addr) // accepted, silent; the next accept fails
	_, err := c.Read(make([]byte, 1))
	testutil.Holds(t, err != nil && !errors.Is(err, os.ErrDeadlineExceeded), "the silent one is closed: %v", err)
	testutil.AtLeast(t, time.Since(start), admission.EvictAge/2, "time that it was given to speak")
}

func TestBrokenListenerEndsServe(t *testing.T) {
	s := newServer(t, Options{}, direct)
	ln := &shortListener{Listener: testutil.Listen(t), fail: syscall.EINVAL}
	testutil.ErrorIs(t, s.Serve(context.Background(), ln), syscall.EINVAL, "what Serve returned")
}

// blockedCheck tells of each check, which lasts until its context ends.
type blockedCheck chan struct{}

func (b blockedCheck) Check(ctx context.Context, _ net.Addr, _, _ string) bool {
	b <- struct{}{}
	<-ctx.Done()
	return false
}

func TestDrain(t *testing.T) {
	t.Run("idle ends at once", func(t *testing.T) {
		testutil.NoError(t, serve(t, Options{Options: front.Options{Drain: time.Hour}}, direct).stop())
	})
	t.Run("open connections finish", func(t *testing.T) {
		s := serve(t, Options{Options: front.Options{Drain: time.Hour}}, direct)
		c := mustThrough(t, s, testutil.Echo(t))
		stopped := make(chan error, 1)
		go func() { stopped <- s.stop() }()
		testutil.Eventually(t, "the listener is closed", func() bool {
			late, err := net.Dial("tcp", s.addr)
			if err == nil {
				_ = late.Close()
			}
			return err != nil
		})
		_, _ = c.Write([]byte("go on"))
		testutil.Succeeds(t, testutil.Err(io.ReadFull(c, make([]byte, 5))), "a connection while draining")
		_ = c.Close()
		testutil.NoError(t, <-stopped)
	})
	t.Run("grace ends", func(t *testing.T) {
		s := serve(t, Options{Options: front.Options{Drain: 50 * time.Millisecond}}, direct)
		c := mustThrough(t, s, testutil.Echo(t))
		testutil.NoError(t, s.stop())
		testutil.ErrorIs(t, testutil.Err(c.Read(make([]byte, 1))), syscall.ECONNRESET, "the client's read")
	})
	t.Run("dials are cancelled", func(t *testing.T) {
		d, dialing, cancelled := blocked()
		s := serve(t, patient(d), nil)
		c := connect(t, s.addr)
		_, _ = c.Write([]byte(hello + connectTo + name("slow", 1)))
		_ = testutil.Receive(t, "dialing", dialing)
		testutil.NoError(t, s.stop())
		_ = testutil.Receive(t, "cancelled", cancelled)
		got, _ := io.ReadAll(c)
		testutil.Equal(t, string(got), ok+code(1), "what is heard")
	})
	t.Run("checks of credentials are ended", func(t *testing.T) {
		checks := make(blockedCheck)
		s := serve(t, Options{Credentials: checks, Options: front.Options{Drain: time.Hour}}, direct)
		_, _ = connect(t, s.addr).Write([]byte("\x05\x01\x02\x01\x01a\x01b"))
		_ = testutil.Receive(t, "checking", checks)
		testutil.Succeeds(t, s.stop(), "Serve")
	})
	t.Run("silent ones do not hold it up", func(t *testing.T) {
		s := serve(t, Options{Options: front.Options{Drain: time.Hour}, handshakeTimeout: time.Hour}, direct)
		_ = connect(t, s.addr)
		testutil.Eventually(t, "it is accepted", func() bool { return s.Slots.Count() == 1 })
		testutil.NoError(t, s.stop())
	})
}

// A drain hurries those, too, that were accepted and did not begin yet.
func TestDrainHurriesNewConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, Options{handshakeTimeout: time.Hour}, direct)
		silent, conn := net.Pipe()
		defer silent.Close()
		c := s.admit(t.Context(), tunnel.Wrap(conn))
		s.hurry()
		began := time.Now()
		go func() { _, _ = io.Copy(io.Discard, silent) }()
		s.serve(t.Context(), c, func() {})
		testutil.AtMost(t, time.Since(began), front.DrainHandshake+time.Second, "time that it was given")
	})
}

func TestServeConnEndsWithItsContext(t *testing.T) {
	s := newServer(t, Options{handshakeTimeout: time.Hour}, direct)
	client, conn := net.Pipe()
	defer client.Close()
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(20*time.Millisecond, cancel)
	s.serveConn(ctx, tunnel.Wrap(conn)) // returns, or the test times out
}

func TestMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	s := newServer(t, Options{Options: front.Options{Registerer: r}}, direct)
	for reason, send := range map[string]string{
		reasonSOCKS4: "\x04", reasonHTTP: "GET / HTTP/1.1\r\n\r\n", reasonTLS: "\x16\x03\x01", reasonMethod: "\x05\x00",
		reasonCommand: hello + "\x05\x03\x00\x01", reasonAddress: hello + connectTo + name("", 1), reasonProtocol: "\xff",
	} {
		_ = talkByTCP(t, s, send)
		testutil.Equal(t, promtest.ToFloat64(s.Metrics.Refused.WithLabelValues(reason)), 1, "%s", reason)
	}
	problems := testutil.Must(promtest.GatherAndLint(r))(t)
	testutil.Equal(t, len(problems), 0, "lint: %v", problems)
}

func TestOptionsAreChecked(t *testing.T) {
	testutil.Fails(t, testutil.Err(New(Options{})), "options without a Forwarder")
}

// Descriptors are divided: who asks beyond the part of those that are served is
// told so, and has a place again as soon as one is free.
func TestDescriptorsBoundServedConnections(t *testing.T) {
	log, lines := logBuffer()
	s := serve(t, Options{Options: front.Options{Descriptors: 8, Log: log}}, direct)
	address := testutil.Echo(t)
	open := []*net.TCPConn{mustThrough(t, s, address), mustThrough(t, s, address)}
	for range 3 {
		err := through(connect(t, s.addr), address, nil)
		testutil.ErrorSays(t, err, "general SOCKS server failure", "a third client")
	}
	testutil.Equal(t, promtest.ToFloat64(s.Metrics.Refused.WithLabelValues(front.ReasonLimit)), 3, "refusals")
	testutil.Contains(t, lines.String(), "ulimit -n", "the log")
	_ = open[0].Close()
	testutil.Eventually(t, "the free place is used", func() bool { return through(connect(t, s.addr), address, nil) == nil })
	_, _ = open[1].Write([]byte("x"))
	testutil.Succeeds(t, testutil.Err(io.ReadFull(open[1], make([]byte, 1))), "an open connection")
}
