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
	l := testutil.Must(Listen(path, Options{}))(t)
	defer l.Close()
	near := testutil.Must(net.Dial("unix", path))(t)
	defer near.Close()
	far := testutil.Must(l.Accept())(t)
	defer far.Close()
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
