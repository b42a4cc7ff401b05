package socks5

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	promtest "github.com/prometheus/client_golang/prometheus/testutil"

	"konnectivity/internal/front"
	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// blockedCheck tells of each check, which lasts until its context ends.
type blockedCheck chan struct{}

func (b blockedCheck) Check(ctx context.Context, _ net.Addr, _, _ string) bool {
	b <- struct{}{}
	<-ctx.Done()
	return false
}

func TestDrain(t *testing.T) {
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
	t.Run("a broken listener ends it", func(t *testing.T) {
		ln := testutil.Listen(t)
		_ = ln.Close()
		testutil.ErrorIs(t, newServer(t, Options{}, direct).Serve(t.Context(), ln), net.ErrClosed, "what Serve returned")
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
	testutil.Fails(t, testutil.Err(New(Options{Options: front.Options{Forwarder: s.Forwarder, Registerer: r}})), "metrics that are there already")
	problems := testutil.Must(promtest.GatherAndLint(r))(t)
	testutil.Equal(t, len(problems), 0, "lint: %v", problems)
	for failure := range tunnel.Failures() {
		s.Metrics.Requests.WithLabelValues(failure.Label())
	}
	testutil.DocumentedLabels(t, "../docs/sidecars.md", "Metrics").Check(t, "", testutil.Must(r.Gather())(t))
}

// At MaxConns with every connection in use, the next one is refused.
func TestConnectionCap(t *testing.T) {
	s := serve(t, Options{Options: front.Options{MaxConns: 1}}, direct)
	_ = mustThrough(t, s, testutil.Echo(t))
	second, done := s.pipe()
	testutil.ErrorIs(t, testutil.Err(second.Read(make([]byte, 1))), io.EOF, "a second client's read")
	<-done
	testutil.Equal(t, promtest.ToFloat64(s.Metrics.Refused.WithLabelValues(front.ReasonLimit)), 1, "refusals")
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

// The pace is what the page says.
func TestFiguresAreDocumented(t *testing.T) {
	testutil.Says(t, "../docs/security.md", "%v wrong ones at once from one address (IPv6: one /64) and %v a second from then on", guessBurst, int64(time.Second/guessEvery))
	testutil.Says(t, "../docs/security.md", "What would wait for more than %v s is refused", int64(guessWait/time.Second))
}

// Bounds to the second, in fake time.

// A client has so long for its handshake, whatever it does meanwhile.
func TestHandshakeIsBounded(t *testing.T) {
	testutil.EachInBubble(t, map[string]string{
		"silent": "", "half a greeting": "\x05", "half a request": hello + connectTo,
		"dripping": "\x05\xff" + strings.Repeat("\x09", 200),
	}, func(t *testing.T, send string) {
		client, done := newServer(t, Options{}, failing(tunnel.FailInternal)).pipe()
		start := time.Now()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		for i, err := 0, error(nil); i < len(send) && err == nil; i++ { // what drips, for much longer than the bound
			_, err = client.Write([]byte(send[i : i+1]))
			time.Sleep(defaultHandshakeTimeout / 100)
		}
		<-done
		testutil.Equal(t, time.Since(start).Round(time.Second), defaultHandshakeTimeout, "how long it was kept")
		_ = client.Close()
	})
}

// A dial may take longer than a handshake may, and no deadline of the handshake or the
// reply may be left on a relayed connection, in either direction.
func TestRelayOutlivesTheBoundsOfTheHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		s := newServer(t, patient(tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
			time.Sleep(3 * defaultHandshakeTimeout)
			return tunnel.Wrap(far), nil
		})), nil)
		client, done := s.pipe()
		_, _ = client.Write([]byte(hello + connectTo + name("slow", 1)))
		testutil.Succeeds(t, testutil.Err(io.ReadFull(client, make([]byte, len(ok+success)))), "the reply")
		for _, c := range []struct{ from, to net.Conn }{{client, near}, {near, client}} {
			time.Sleep(time.Hour)
			go func() { _, _ = c.from.Write([]byte("late")) }()
			testutil.Succeeds(t, testutil.Err(io.ReadFull(c.to, make([]byte, 4))), "the relay after an hour")
		}
		_ = client.Close()
		_ = near.Close()
		<-done
	})
}

// However long a dial takes, its client's leaving is noticed when it happens.
func TestLeavingIsNoticedAfterTheHandshakeTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var waited time.Duration
		s := newServer(t, patient(tunnel.DialerFunc(func(ctx context.Context, _ *tunnel.Flow) (tunnel.Conn, error) {
			start := time.Now()
			<-ctx.Done()
			waited = time.Since(start)
			return nil, ctx.Err()
		})), nil)
		client, done := s.pipe()
		_, _ = client.Write([]byte(hello))
		_, _ = io.ReadFull(client, make([]byte, len(ok)))
		_, _ = client.Write([]byte(connectTo + name("slow", 1)))
		time.Sleep(3 * defaultHandshakeTimeout)
		_ = client.Close()
		<-done
		testutil.Equal(t, waited, 3*defaultHandshakeTimeout, "when the dial was given up")
	})
}
