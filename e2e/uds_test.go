package e2e

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A path that holds anything but a dead socket is left alone, with status 1 and
// a sentence.
func TestUnixSocketTakesNothingFromOthers(t *testing.T) {
	s := newSuite(t)
	path := filepath.Join(s.Dir, "taken")
	refused := func(says string) {
		t.Helper()
		p := must(s.Run("konnectivity-server", nil, "--uds-name="+path, "--server-port=0", "--agent-port="+anyPort(t),
			"--health-port=0", "--admin-port=0", "--agent-bind-address=127.0.0.1", "--cluster-ca-cert="+s.PKI("ca.crt"),
			"--cluster-cert="+s.PKI("cluster.crt"), "--cluster-key="+s.PKI("cluster.key")))(t)
		code, err := p.Wait(20 * time.Second)
		if err != nil || code != 1 || !strings.Contains(p.Output(), says) || !strings.Contains(p.Output(), "--uds-name") {
			t.Errorf("status %d, %v, want 1 and %q:\n%s", code, err, says, p.Output())
		}
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused("not a socket")
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file holds %q, %v", b, err)
	}
	_ = os.Remove(path)
	l := must(net.Listen("unix", path))(t)
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
		}
	}()
	refused("another process")
	if c, err := net.Dial("unix", path); err != nil {
		t.Errorf("the other's socket is gone: %v", err)
	} else {
		c.Close()
	}

	// What a killed server left is replaced, and what a stopped one would
	// leave is not there.
	srv := must(s.StartServer())(t)
	srv.Kill()
	if _, err := os.Lstat(srv.UDS); err != nil {
		t.Fatal(err)
	}
	if err := s.RunServer(srv); err != nil {
		t.Fatal(err)
	}
	stopInOrder(t, srv.Process)
	if _, err := os.Lstat(srv.UDS); err == nil {
		t.Error("the socket outlived its server")
	}
}
