package socks5

import (
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/tunnel"
)

// Bounds to the second, in fake time.

func TestSilentClientIsKeptForTheDefaultTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, Options{}, direct)
		client, conn := net.Pipe()
		defer client.Close()
		start := time.Now()
		s.serveConn(context.Background(), tunnel.Wrap(conn))
		if took := time.Since(start); took != defaultHandshakeTimeout {
			t.Errorf("a silent client was kept for %v", took)
		}
	})
}

// No deadline of the handshake or the reply may be left on a relayed
// connection, in either direction.
func TestQuietRelayIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		s := newServer(t, Options{}, tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
			return tunnel.Wrap(far), nil
		}))
		client, done := s.pipe()
		_, _ = client.Write([]byte(hello + connectTo + name("a", 1)))
		_, _ = io.ReadFull(client, make([]byte, len(ok+success)))
		for _, c := range []struct{ from, to net.Conn }{{client, near}, {near, client}} {
			time.Sleep(time.Hour)
			go func() { _, _ = c.from.Write([]byte("late")) }()
			if _, err := io.ReadFull(c.to, make([]byte, 4)); err != nil {
				t.Error(err)
			}
		}
		_ = client.Close()
		_ = near.Close()
		<-done
	})
}

// A dial may take longer than a handshake may.
func TestSlowDialOutlivesTheHandshakeBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		s := newServer(t, patient(tunnel.DialerFunc(func(context.Context, *tunnel.Flow) (tunnel.Conn, error) {
			time.Sleep(3 * defaultHandshakeTimeout)
			return tunnel.Wrap(far), nil
		})), nil)
		client, done := s.pipe()
		_, _ = client.Write([]byte(hello + connectTo + name("slow", 1)))
		if _, err := io.ReadFull(client, make([]byte, len(ok+success))); err != nil {
			t.Error(err)
		}
		go func() { _, _ = client.Write([]byte("hello")) }()
		if _, err := io.ReadFull(near, make([]byte, 5)); err != nil {
			t.Error(err)
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
		if waited != 3*defaultHandshakeTimeout {
			t.Errorf("the dial was given up after %v", waited)
		}
	})
}
