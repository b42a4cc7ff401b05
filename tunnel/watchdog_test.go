package tunnel_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// A client that resets while it downloads: whichever of the relay's directions
// hears of it, the destination must not take it for the end of an upload.
func TestRelayPassesOnResetDuringDownload(t *testing.T) {
	for i := range 100 {
		client, a := testutil.Pair(t)
		b, target := testutil.Pair(t)
		far := told{tunnel.Wrap(b), make(chan error, 1), make(chan struct{}, 1)}
		relay := &tunnel.Relay{A: tunnel.Wrap(a), B: far}
		if i%2 == 0 {
			relay.A = tunnel.With(relay.A, tunnel.Parts{In: tunnel.CopySource(relay.A)}) // is read by Read
		}
		result := run(t.Context(), relay)
		written := make(chan struct{})
		go func() {
			defer close(written)
			for err := error(nil); err == nil; {
				_, err = target.Write(make([]byte, 64<<10))
			}
		}()
		testutil.Must(io.ReadFull(client, make([]byte, 256<<10)))(t)
		_ = client.SetLinger(0)
		client.Close()
		testutil.Equal(t, tunnel.CodeOf(outcome(t, result)), tunnel.CodePeerReset, "how the relay ended")
		testutil.Equal(t, len(far.ended), 0, "times the destination was told that the upload is complete")
		<-written
	}
}

// A client that has sent all and left before the target spoke: what the target
// then says is answered by a reset, which must not cost the upload its tail.
func TestRelayDeliversUploadOfClosedClient(t *testing.T) {
	relay := &tunnel.Relay{Flow: new(tunnel.Flow)}
	client, target, result := startRelay(t, relay)
	sent := make([]byte, 1<<20) // more than the target's socket takes at first
	_, _ = rand.Read(sent)
	testutil.Must(client.Write(sent))(t)
	client.Close()
	for up, end := int64(0), time.Now().Add(time.Minute); up < int64(len(sent)) && time.Now().Before(end); up, _ = relay.Flow.Sent() {
		time.Sleep(10 * time.Millisecond)
	}
	_, _ = target.Write([]byte("hello")) // is answered by a reset
	for down, end := int64(0), time.Now().Add(time.Minute); down == 0 && time.Now().Before(end); _, down = relay.Flow.Sent() {
		time.Sleep(time.Millisecond)
	}
	_, _ = target.Write([]byte("hello")) // fails for it
	testutil.Equal(t, tunnel.CodeOf(outcome(t, result)), tunnel.CodePeerReset, "how the relay ended")
	got := testutil.Must(io.ReadAll(target))(t)
	testutil.Equal(t, bytes.Equal(got, sent), true, "%d bytes are all of %d", len(got), len(sent))
}

// fill writes to c until nothing more is taken, and returns what was.
func fill(t *testing.T, c *net.TCPConn) []byte {
	t.Helper()
	var all []byte
	for {
		p := make([]byte, 64<<10)
		_, _ = rand.Read(p)
		_ = c.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := c.Write(p)
		all = append(all, p[:n]...)
		if err != nil {
			_ = c.SetWriteDeadline(time.Time{})
			return all
		}
	}
}

// told is a Conn that notes with which cause it was reset, and that the
// direction toward it was ended in order.
type told struct {
	tunnel.Conn
	cause chan error
	ended chan struct{}
}

func (c told) CloseWrite() error {
	c.ended <- struct{}{}
	return c.Conn.CloseWrite()
}

func (c told) Reset(cause error) error {
	select {
	case c.cause <- cause:
	default:
	}
	return c.Conn.Reset(cause)
}

// named hides that c is a socket, but not what lies under it, as TLS does.
type named struct{ net.Conn }

func (c named) NetConn() net.Conn { return c.Conn }

// stalled is a relay between a client that has sent all it can and a target
// that reads nothing.
func stalled(t *testing.T, wrap func(net.Conn) tunnel.Conn) (client, target *net.TCPConn, relay *tunnel.Relay, sent []byte, cause, result chan error) {
	client, a := testutil.Pair(t)
	b, target := testutil.Pair(t)
	cause = make(chan error, 1)
	relay = &tunnel.Relay{Flow: new(tunnel.Flow), A: wrap(a), B: told{tunnel.Wrap(b), cause, make(chan struct{}, 1)}}
	result = run(t.Context(), relay)
	for stands := false; !stands; { // a relay that is held up takes nothing for a moment, either
		before, _ := relay.Flow.Sent()
		sent = append(sent, fill(t, client)...)
		after, _ := relay.Flow.Sent()
		held, _ := relay.Flow.Held()
		stands = held && after == before
	}
	return client, target, relay, sent, cause, result
}

// Nobody reads from a client whose destination stalls. Its reset must be
// noticed all the same, also under TLS and behind bytes that were read ahead,
// and the destination told that this is why.
func TestRelayNoticesResetBehindStalledDestination(t *testing.T) {
	t.Parallel() // it waits
	testutil.Each(t, map[string]func(net.Conn) tunnel.Conn{
		"socket":       tunnel.Wrap,
		"read ahead":   func(c net.Conn) tunnel.Conn { return tunnel.Unread(tunnel.Wrap(c), []byte("GET")) },
		"under others": func(c net.Conn) tunnel.Conn { return tunnel.Wrap(named{c}) },
	}, func(t *testing.T, wrap func(net.Conn) tunnel.Conn) {
		t.Parallel()
		client, target, _, _, cause, result := stalled(t, wrap)
		_ = client.SetLinger(0)
		client.Close()
		testutil.Equal(t, tunnel.CodeOf(outcome(t, result)), tunnel.CodePeerReset, "how the relay ended")
		testutil.Requires(t, len(cause) > 0, "the relay ended before the destination was told")
		testutil.Equal(t, tunnel.CodeOf(<-cause), tunnel.CodePeerReset, "what the destination was told")
		testutil.ErrorIs(t, testutil.Err(io.Copy(io.Discard, target)), syscall.ECONNRESET, "the target's read")
	})
}

// A client that has sent all and left in order is owed its delivery, however
// long the target takes. What arrived of one that has reset is handed on for as
// long as the target reads now and then; the reset that follows overtakes what
// the kernel has not sent by then, as any reset does.
func TestRelayDeliversToSlowDestination(t *testing.T) {
	t.Parallel()                  // it waits
	const pause = 3 * time.Second // more than one look at the source, less than is granted after a reset
	t.Run("after FIN", func(t *testing.T) {
		t.Parallel()
		client, target, _, sent, _, result := stalled(t, tunnel.Wrap)
		_ = client.CloseWrite() // what nobody holds any more, a kernel short of memory resets
		time.Sleep(2 * pause)   // and more than would be granted after a reset
		got := testutil.Must(io.ReadAll(target))(t)
		testutil.Equal(t, bytes.Equal(got, sent), true, "%d bytes are all of %d", len(got), len(sent))
		target.Close()
		testutil.Succeeds(t, outcome(t, result), "the relay")
	})
	t.Run("after RST", func(t *testing.T) {
		t.Parallel()
		for range 5 {
			if deliversBehindAReset(t, pause) {
				return
			}
		}
		t.Skip("a pause takes longer on this machine than is granted after a reset")
	})
}

// deliversBehindAReset has the target pause after a reset. It returns false if the pause was
// longer than the relay waits.
func deliversBehindAReset(t *testing.T, pause time.Duration) (inTime bool) {
	client, target, relay, sent, _, result := stalled(t, tunnel.Wrap)
	before, _ := relay.Flow.Sent()
	reset := time.Now()
	_ = client.SetLinger(0)
	client.Close()
	time.Sleep(pause)
	inTime = time.Since(reset) < 5*time.Second // the bound, which begins when the reset is noticed
	got, err := io.ReadAll(target)
	testutil.Holds(t, errors.Is(err, syscall.ECONNRESET) && bytes.HasPrefix(sent, got) && (!inTime || len(got) != 0),
		"the target read %d bytes, which should be the first that were sent, and then %v, want ECONNRESET", len(got), err)
	after, _ := relay.Flow.Sent()
	testutil.Holds(t, !inTime || after > before, "%d bytes are delivered before the reset, %d after it", before, after)
	testutil.Equal(t, tunnel.CodeOf(outcome(t, result)), tunnel.CodePeerReset, "how the relay ended")
	return inTime
}
