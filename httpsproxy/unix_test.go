package httpsproxy

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// dialUnix serves on a unix socket and returns a way to connect to it.
func dialUnix(t *testing.T, change func(*Options)) func() *net.UnixConn {
	t.Helper()
	ln := testutil.Must(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
	p := startProxyOn(t, ln, change)
	return func() *net.UnixConn {
		c := testutil.Must(net.Dial("unix", p.addr))(t)
		t.Cleanup(func() { c.Close() })
		_ = c.SetDeadline(time.Now().Add(maxWait))
		return c.(*net.UnixConn)
	}
}

// A tunnel's two directions end one by one, as on TCP.
func TestUnixHalfClose(t *testing.T) {
	target := testutil.Serve(t, echo)
	c := dialUnix(t, nil)()
	_, _ = io.WriteString(c, "CONNECT "+target+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nping")
	_ = c.CloseWrite()
	const want = "HTTP/1.1 200 Connection Established\r\n\r\nping"
	testutil.Equal(t, string(testutil.Must(io.ReadAll(c))(t)), want, "the answer")
}

// Who says nothing, too little or nonsense is turned away, as on TCP.
func TestUnixBadClientsAreClosed(t *testing.T) {
	const bound = time.Second
	dial := dialUnix(t, func(o *Options) { o.handshakeTimeout = bound })
	var waiting []*net.UnixConn
	for _, said := range []string{"", "CONN", "CONNECT a:1 HTTP/1.1\r\nHost: 127.0.0.1\r\n", "\x16\x03\x01\x02\x00\x01", "\x00\xff\r\n\r\n", "\x05\x01\x00"} {
		c := dial()
		_, _ = io.WriteString(c, said)
		waiting = append(waiting, c)
	}
	for i, c := range waiting {
		testutil.Succeeds(t, testutil.Err(io.Copy(io.Discard, c)), "client %d", i)
	}
}
