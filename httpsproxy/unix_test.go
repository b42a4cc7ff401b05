package httpsproxy

import (
	"io"
	"net"
	"path/filepath"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// A tunnel's two directions end one by one by a unix socket, as on TCP.
func TestUnixHalfClose(t *testing.T) {
	ln := testutil.Must(net.Listen("unix", filepath.Join(t.TempDir(), "s")))(t)
	c := testutil.Must(net.Dial("unix", startProxyOn(t, ln, nil).addr))(t).(*net.UnixConn)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(maxWait))
	_, _ = io.WriteString(c, "CONNECT "+testutil.Echo(t)+" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nping")
	_ = c.CloseWrite()
	const want = "HTTP/1.1 200 Connection Established\r\n\r\nping"
	testutil.Equal(t, string(testutil.Must(io.ReadAll(c))(t)), want, "the answer")
}
