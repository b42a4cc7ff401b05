package unixsocket

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

func TestPeerOf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l := testutil.Opened(Listen(path, Options{}))(t)
	testutil.Opened(net.Dial("unix", path))(t)
	far := testutil.Opened(l.Accept())(t)
	want := tunnel.NewIdentity("socket:" + path)
	if runtime.GOOS == "linux" {
		want = tunnel.NewIdentity("socket:"+path, fmt.Sprint("uid:", os.Getuid()))
	}
	testutil.Equal(t, PeerOf(tunnel.Wrap(far)), want, "the peer")
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	testutil.Equal(t, PeerOf(a), "", "a pipe")
}
