package tunnel_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"io"
	"net"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testutil.Settled(m)) }

// startRelay joins two loopback connections and returns their outer ends.
func startRelay(t *testing.T, relay *tunnel.Relay) (client, target *net.TCPConn, result chan error) {
	client, a := testutil.Pair(t)
	b, target := testutil.Pair(t)
	relay.A, relay.B = tunnel.Wrap(a), tunnel.Wrap(b)
	result = run(t.Context(), relay)
	t.Cleanup(func() {
		client.Close()
		target.Close()
		select {
		case <-result:
		case <-time.After(time.Minute):
			t.Error("relay did not end after both ends closed")
		}
	})
	return client, target, result
}

// run runs a relay. Behind its outcome, result is closed.
func run(ctx context.Context, relay *tunnel.Relay) (result chan error) {
	result = make(chan error, 1)
	go func() {
		defer close(result)
		result <- relay.Run(ctx)
	}()
	return result
}

// outcome returns how a relay has ended.
func outcome(t *testing.T, result chan error) error {
	t.Helper()
	return testutil.Receive(t, "the relay ends", result)
}

func TestRelayHalfCloseKeepsTheAnswer(t *testing.T) {
	total := new(tunnel.Totals)
	relay := &tunnel.Relay{Flow: counted(total)}
	client, target, result := startRelay(t, relay)
	payload := make([]byte, 8<<20)
	_, _ = rand.Read(payload)

	go func() { // the target answers with the hash once it has seen FIN
		h := sha256.New()
		_, _ = io.Copy(h, target)
		_, _ = target.Write(h.Sum(nil))
		target.Close()
	}()
	testutil.Must(client.Write(payload))(t)
	testutil.NoError(t, client.CloseWrite())
	got := testutil.Must(io.ReadAll(client))(t)
	want := sha256.Sum256(payload)
	testutil.EqualSlices(t, got, want[:], "the answer after half-close")
	testutil.Succeeds(t, outcome(t, result), "the relay")
	up, down := relay.Flow.Sent()
	testutil.Equal(t, up, int64(len(payload)), "bytes up")
	testutil.Equal(t, down, sha256.Size, "bytes down")
	testutil.Equal(t, total.Up.Load(), int64(len(payload)), "the total up")
}

func TestRelayResetArrivesAsReset(t *testing.T) {
	testutil.EachOf(t, []string{"client", "target"}, func(t *testing.T, from string) {
		client, target, result := startRelay(t, &tunnel.Relay{})
		src, dst := client, target
		if from == "target" {
			src, dst = target, client
		}
		_, _ = src.Write([]byte("x"))
		testutil.Must(io.ReadFull(dst, make([]byte, 1)))(t)
		_ = src.SetLinger(0)
		src.Close()
		testutil.ErrorIs(t, testutil.Err(dst.Read(make([]byte, 1))), syscall.ECONNRESET, "the other end's read")
		testutil.Equal(t, tunnel.CodeOf(outcome(t, result)), tunnel.CodePeerReset, "how the relay ended")
	})
}

// duplex is an end of a connection in memory that half-closes.
type duplex struct {
	net.Conn          // to read from
	out      net.Conn // to write to
}

func newDuplex() (a, b *duplex) {
	toA, fromB := net.Pipe()
	toB, fromA := net.Pipe()
	return &duplex{toA, fromA}, &duplex{toB, fromB}
}

func (d *duplex) Write(p []byte) (int, error) { return d.out.Write(p) }

func (d *duplex) CloseWrite() error { return d.out.Close() }

func (d *duplex) Close() error {
	_ = d.out.Close()
	return d.Conn.Close()
}

func TestRelayLingerIsBoundedAndCountsOnlySilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const linger, almost = 10 * time.Minute, 10*time.Minute - time.Millisecond
		client, a := newDuplex()
		b, target := newDuplex()
		relay := &tunnel.Relay{A: tunnel.Wrap(a), B: tunnel.Wrap(b)}
		result := run(t.Context(), relay)
		_ = client.CloseWrite()
		for range 6 { // longer than that in all, but never silent that long
			time.Sleep(almost)
			testutil.Must(target.Write([]byte("still here")))(t)
			testutil.Must(io.ReadFull(client, make([]byte, 10)))(t)
		}
		silent := time.Now()
		testutil.Equal(t, tunnel.CodeOf(<-result), tunnel.CodeTimeout, "how the relay ended")
		testutil.Between(t, time.Since(silent), almost, 2*linger, "the silence that ends it")
		_ = client.Close()
		_ = target.Close()
	})
}

func TestRelayIdleBound(t *testing.T) {
	_, _, result := startRelay(t, &tunnel.Relay{Idle: 50 * time.Millisecond})
	testutil.Equal(t, tunnel.CodeOf(outcome(t, result)), tunnel.CodeTimeout, "how the relay ended")
}

// A server that answers and resets while the client still uploads: what it
// answered must arrive first.
func TestRelayDeliversTheAnswerBeforeAReset(t *testing.T) {
	client, target, result := startRelay(t, &tunnel.Relay{})
	_, _ = client.Write(bytes.Repeat([]byte("u"), 64<<10))
	testutil.Must(io.ReadFull(target, make([]byte, 1)))(t)
	_, _ = target.Write([]byte("413 too large"))
	got := make([]byte, 13)
	testutil.NoError(t, testutil.Err(io.ReadFull(client, got)))
	testutil.Equal(t, string(got), "413 too large", "the answer")
	target.Close() // unread data makes this an RST
	for {
		if _, err := client.Write([]byte("more")); err != nil {
			break
		}
		time.Sleep(time.Millisecond)
	}
	testutil.Fails(t, outcome(t, result), "the relay")
}

// struck is a Conn that was reset, which its reader has not seen yet.
type struck struct{ tunnel.Conn }

func (struck) Struck() error { return &tunnel.ResetError{Code: tunnel.CodeCancelled} }

// A client's reset goes before the end of the link that it came by: the far end would wait for a
// client that it takes to have lost its link.
func TestRelayPassesOnAResetBeforeItsLinksEnd(t *testing.T) {
	near, client := net.Pipe()
	far, target := net.Pipe()
	defer client.Close()
	defer target.Close()
	ctx, end := context.WithCancelCause(t.Context())
	end(tunnel.Lost(tunnel.LossCut))
	err := outcome(t, run(ctx, &tunnel.Relay{A: struck{tunnel.Wrap(near)}, B: tunnel.Wrap(far)}))
	testutil.Equal(t, tunnel.CodeOf(err), tunnel.CodeCancelled, "what both ends are reset with, of %v", err)
}

// unending cannot be told that a direction has ended.
type unending struct{ *duplex }

func (unending) CloseWrite() error { return io.ErrClosedPipe }

// Where the destination takes no more bytes, or not their end, what it has said by then
// arrives, and both connections are closed behind it.
func TestRelayFreesBothEndsOfAFailedDestination(t *testing.T) {
	testutil.EachInBubble(t, map[string]func(b, target *duplex) tunnel.Conn{
		"write":      func(b, target *duplex) tunnel.Conn { _ = target.Conn.Close(); return tunnel.Wrap(b) },
		"CloseWrite": func(b, _ *duplex) tunnel.Conn { return tunnel.Wrap(unending{b}) },
	}, func(t *testing.T, fail func(b, target *duplex) tunnel.Conn) {
		client, a := newDuplex()
		b, target := newDuplex()
		relay := &tunnel.Relay{A: tunnel.Wrap(a), B: fail(b, target)}
		result := run(t.Context(), relay)
		_, _ = client.Write([]byte("x"))
		_, _ = target.Read(make([]byte, 1))
		_ = client.CloseWrite()
		testutil.Must(target.Write([]byte("answer")))(t)
		_ = target.CloseWrite()
		testutil.Equal(t, string(testutil.Must(io.ReadAll(client))(t)), "answer", "what arrives")
		testutil.ErrorIs(t, <-result, io.ErrClosedPipe, "the relay")
		for _, c := range []tunnel.Conn{relay.A, relay.B} {
			testutil.ErrorIs(t, testutil.Err(c.Read(make([]byte, 1))), io.ErrClosedPipe, "a read of a closed connection")
		}
	})
}

// What passes a relay allocates nothing: not for large chunks nor small
// messages, and with everything that counts bytes switched on.
func TestRelayAllocatesNothing(t *testing.T) {
	testutil.Each(t, map[string]int{"bulk": 64 << 10, "message": 64}, func(t *testing.T, size int) {
		relay := &tunnel.Relay{Flow: counted(new(tunnel.Totals)), Idle: time.Hour}
		client, target, _ := startRelay(t, relay)
		there, back := make([]byte, size), make([]byte, size)
		testutil.MaxAllocs(t, 0, func() {
			exchange(t, client, target, there, back)
			exchange(t, target, client, there, back)
		})
	})
}

// exchange sends what and receives it into got.
func exchange(t testing.TB, from, to net.Conn, what, got []byte) {
	testutil.Must(from.Write(what))(t)
	testutil.Must(io.ReadFull(to, got))(t)
}

// script is a Source that delivers what the test says, if it is asked to.
type script struct {
	tunnel.Source // is read where nobody asks
	before        []string
	asked         chan tunnel.Receiver
	delivers      atomic.Bool
	read          chan struct{} // told when before was read
}

func newScript(c tunnel.Conn, before ...string) *script {
	return &script{Source: c.In(), before: before, asked: make(chan tunnel.Receiver, 1), read: make(chan struct{}, 1)}
}

func (s *script) Deliver(r tunnel.Receiver) bool {
	s.delivers.Store(true)
	s.asked <- r
	return true
}

func (s *script) ReadChunks(dst []tunnel.Chunk) (int, error) {
	if !s.delivers.Load() {
		return s.Source.ReadChunks(dst)
	}
	if len(s.before) == 0 {
		s.read <- struct{}{}
		return 0, nil
	}
	dst[0] = tunnel.CopyChunk([]byte(s.before[0]))
	s.before = s.before[1:]
	return 1, nil
}

// A Source delivers on its read loop, so only to what never blocks there: not to
// TLS, say, whose CloseWrite may wait for its peer.
func TestSourceDeliversOnlyToNonblockingSinks(t *testing.T) {
	for name, c := range map[string]struct {
		wrap func(net.Conn) tunnel.Conn
		want bool
	}{
		"a socket":                 {tunnel.Wrap, true},
		"a socket, read ahead":     {func(c net.Conn) tunnel.Conn { return tunnel.Unread(tunnel.Wrap(c), []byte("x")) }, true},
		"any other connection":     {func(c net.Conn) tunnel.Conn { return tunnel.Wrap(named{c}) }, false},
		"another that is replaced": {func(c net.Conn) tunnel.Conn { return tunnel.With(tunnel.Wrap(named{c}), tunnel.Parts{}) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			_, a := testutil.Pair(t)
			b, target := testutil.Pair(t)
			s := newScript(tunnel.Wrap(a))
			relay := &tunnel.Relay{A: tunnel.With(tunnel.Wrap(a), tunnel.Parts{In: s}), B: c.wrap(b)}
			done := run(t.Context(), relay)
			_, _ = target.Write([]byte("back"))
			_ = target.Close()
			_ = a.CloseRead() // ends the direction that is not delivered
			select {
			case r := <-s.asked:
				<-s.read
				r.End()
				<-done
			case <-done:
			}
			testutil.Equal(t, s.delivers.Load(), c.want, "it delivers")
		})
	}
}

// A relay reads what came before it takes anything, counts what it takes, and
// passes the end on.
func TestRelayTakesDeliveredChunks(t *testing.T) {
	client, a := testutil.Pair(t)
	b, target := testutil.Pair(t)
	s := newScript(tunnel.Wrap(a), "one ", "two ")
	flow := tunnel.NewFlow("tcp", "x:1")
	relay := &tunnel.Relay{A: tunnel.With(tunnel.Wrap(a), tunnel.Parts{In: s}), B: tunnel.Wrap(b), Flow: flow}
	result := run(t.Context(), relay)
	r := <-s.asked
	<-s.read // the turn is over
	three := tunnel.CopyChunk([]byte("three "))
	testutil.Equal(t, r.Take(three), three.Len(), "bytes that were taken")
	r.Flush()
	s.before = []string{"four"}
	r.Ready()
	<-s.read
	r.End()
	got := testutil.Must(io.ReadAll(target))(t)
	testutil.Equal(t, string(got), "one two three four", "what the target is given")
	up, _ := flow.Sent()
	testutil.Equal(t, up, int64(len(got)), "bytes that were counted")
	_ = target.Close()
	testutil.Equal(t, testutil.Err(client.Read(make([]byte, 1))), io.EOF, "what the client reads")
	testutil.Succeeds(t, outcome(t, result), "the relay")
	three.Release()
}
