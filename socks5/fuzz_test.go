package socks5

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/net/proxy"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// recorded is what a real client says to reach address.
func recorded(f *testing.F, address string, auth *proxy.Auth) []byte {
	f.Helper()
	var said bytes.Buffer
	s := newServer(f, Options{}, failing(tunnel.FailRefused))
	if auth != nil {
		s = newServer(f, Options{Credentials: static{auth.User: auth.Password}}, failing(tunnel.FailRefused))
	}
	client, done := s.pipe()
	_ = through(teeConn{client, &said}, address, auth)
	_ = client.Close()
	<-done
	return said.Bytes()
}

type teeConn struct {
	net.Conn
	w io.Writer
}

func (c teeConn) Write(p []byte) (int, error) { _, _ = c.w.Write(p); return c.Conn.Write(p) }

// FuzzServeConn says anything at all to the server. Whatever it is, the server
// must come back, answer only with messages of the protocol, and dial only
// addresses that are addresses.
func FuzzServeConn(f *testing.F) {
	anna := &proxy.Auth{User: "anna", Password: "secret"}
	for _, address := range []string{"10.0.0.1:80", "[fd00::7]:443", "kubernetes.default.svc:6443"} {
		f.Add(recorded(f, address, nil), false)
		f.Add(recorded(f, address, anna), true)
	}
	for _, c := range conversations {
		f.Add([]byte(c.send), c.auth)
	}
	f.Fuzz(func(t *testing.T, said []byte, auth bool) {
		o := Options{}
		if auth {
			o.Credentials = static{"anna": "secret"}
		}
		dials := 0
		s := newServer(t, o, tunnel.DialerFunc(func(_ context.Context, f *tunnel.Flow) (tunnel.Conn, error) {
			dials++
			_, _, err := tunnel.SplitAddress(f.Address)
			testutil.Holds(t, err == nil && f.Network == "tcp", "dialed %s %q: %v", f.Network, f.Address, err)
			return nil, &tunnel.DialError{Failure: tunnel.FailRefused}
		}))
		conn := &script{said: bytes.NewReader(said)}
		s.serveConn(context.Background(), tunnel.Wrap(conn))
		testutil.Equal(t, conn.closed, true, "the connection was closed")
		heard := conn.heard.String()
		testutil.Equal(t, understood(heard, auth), true, "%q is answered by the protocol, with %q", said, heard)
		refused := len(heard) >= 10 && heard[len(heard)-10:] == code(replyRefused)
		testutil.Holds(t, refused == (dials == 1), "%d dials, heard %q", dials, heard)
	})
}

// understood says whether heard is a sequence a client could be told: greeting,
// authentication and reply, or a prefix of it, or one of the refusals of other
// protocols.
func understood(heard string, auth bool) bool {
	foreigners := []string{"", httpRefusal, "\x00\x5b\x00\x00\x00\x00\x00\x00", "\x15\x03\x01\x00\x02\x02\x28"}
	if slices.Contains(append(foreigners, "\x05\xff"), heard) {
		return true
	}
	accepted := []string{ok}
	if auth {
		accepted = []string{"\x05\x02\x01\x00"}
		if heard == "\x05\x02" || heard == "\x05\x02\x01\x01" {
			return true
		}
	}
	for _, a := range accepted {
		for _, reply := range []string{"", code(1), code(5), code(7), code(8)} {
			if heard == a+reply {
				return true
			}
		}
	}
	return false
}

// script is a client that says everything at once and then nothing until it is
// too late. It costs no goroutine and no time, so the fuzzer gets far.
type script struct {
	net.Conn // nil: only what is below is used
	said     *bytes.Reader
	heard    bytes.Buffer
	closed   bool
}

func (s *script) Read(p []byte) (int, error) {
	if s.said.Len() == 0 {
		return 0, os.ErrDeadlineExceeded
	}
	return s.said.Read(p)
}

func (s *script) Write(p []byte) (int, error) { return s.heard.Write(p) }

func (s *script) Close() error { s.closed = true; return nil }

func (s *script) CloseWrite() error { return nil }

func (s *script) LocalAddr() net.Addr { return nil }

func (s *script) RemoteAddr() net.Addr { return nil }

func (s *script) SetDeadline(time.Time) error { return nil }

func (s *script) SetReadDeadline(time.Time) error { return nil }

func (s *script) SetWriteDeadline(time.Time) error { return nil }
