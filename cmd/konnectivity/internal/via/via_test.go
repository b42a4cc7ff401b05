package via

import (
	"cmp"
	"context"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
	"konnectivity/tunnel/connect"
)

// The reply of a SOCKS5 proxy says why a dial failed (RFC 1928 §6).
func TestSOCKS5Replies(t *testing.T) {
	for reply, want := range map[byte]string{
		1: "dial x.test:1: the SOCKS5 proxy failed, and cannot say why by SOCKS5: its log does",
		2: "dial x.test:1: destination not allowed",
		3: "dial x.test:1: network is unreachable",
		4: "dial x.test:1: the host is unreachable, or its name is not known",
		5: "dial x.test:1: connection refused",
		6: "dial x.test:1: i/o timeout",
	} {
		front := testutil.Serve(t, func(c *net.TCPConn) {
			_, _ = io.ReadFull(c, make([]byte, 3))
			_, _ = c.Write([]byte{5, 0})
			_, _ = io.ReadFull(c, make([]byte, 5+len("x.test")+2))
			_, _ = c.Write([]byte{5, reply, 0, 1, 0, 0, 0, 0, 0, 0})
		})
		_, err := SOCKS5(front).Dial(t.Context(), tunnel.NewFlow("tcp", "x.test:1"))
		testutil.Requires(t, err != nil, "reply %d", reply)
		testutil.Equal(t, err.Error(), want, "reply %d", reply)
	}
}

// A proxy that hangs up, or says nothing, is named.
func TestProxiesWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	for name, dialer := range map[string]func(string) tunnel.Dialer{"SOCKS5": SOCKS5, "HTTP": HTTP} {
		for _, hangsUp := range []bool{true, false} {
			ctx, cancel := context.WithCancel(t.Context())
			front := testutil.Serve(t, func(c *net.TCPConn) {
				if _, _ = c.Read(make([]byte, 1<<10)); !hangsUp {
					cancel()
					_, _ = io.Copy(io.Discard, c)
				}
			})
			_, err := dialer(front).Dial(ctx, tunnel.NewFlow("tcp", "x.test:1"))
			cancel()
			testutil.ErrorSays(t, err, "dial x.test:1: no answer by way of the proxy at "+front, "%s, which hangs up: %v", name, hangsUp)
		}
	}
}

// A proxy whose answer makes no sense has answered.
func TestProxyWithAMalformedAnswer(t *testing.T) {
	_, err := HTTP(says(t, "HTTP/1.1 999 x\r\n\r\n")).Dial(t.Context(), tunnel.NewFlow("tcp", "x.test:1"))
	testutil.ErrorSays(t, err, "dial x.test:1: internal error: "+connect.ErrMalformed.Error(), "the dial")
}

// A port whose first byte is that of SOCKS5 is not probed for other protocols, even if the rest
// of its answer is late or missing.
func TestTheFirstByteTellsSOCKS5(t *testing.T) {
	front := says(t, "SSH-2.0-OpenSSH_9.2\r\n") // what a probe would find
	synctest.Test(t, func(t *testing.T) {
		near, far := net.Pipe()
		defer near.Close()
		go func() { _, _ = far.Write([]byte{5}) }()
		err := handshakeAt(t.Context(), near, front, "x.test:1", SpeaksSOCKS5, func(c net.Conn) error {
			_, err := c.Read(make([]byte, 1))
			time.Sleep(2 * greetingTime)
			return cmp.Or(err, io.ErrUnexpectedEOF)
		})
		testutil.Equal(t, err, io.ErrUnexpectedEOF, "the handshake's error")
	})
}
