package socks5

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

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
