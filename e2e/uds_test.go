package e2e

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/suite"
	"konnectivity/internal/unixsocket"
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
		code, err := p.Wait(patience)
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

// A sidecar's socket is treated in the same way, and kube-apiserver's CONNECT goes
// through it.
func TestUnixSocketOfASidecar(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	srv := must(s.StartServer())(t)
	must(s.StartAgent(srv))(t)
	target := echoTarget(t)
	path := filepath.Join(s.Dir, "egress")
	first := must(s.StartHTTPS(srv, "--serving-uds="+path))(t)
	listensAt(t, first, path, unixsocket.DefaultMode)
	second := must(s.Run("konnectivity-https-proxy", nil, "--serving-uds="+path, "--serving-port=0"))(t)
	if code, err := second.Wait(patience); err != nil || code != 1 || !strings.Contains(second.Output(), "--serving-uds: "+path+" is the socket of another process") {
		t.Errorf("status %d, %v:\n%s", code, err, second.Output())
	}
	first.Kill()
	if _, err := os.Lstat(path); err != nil {
		t.Fatal(err)
	}
	next := must(s.StartHTTPS(srv, "--serving-uds="+path, "--serving-uds-mode=0600"))(t)
	listensAt(t, next, path, 0o600)
	c := must(net.Dial("unix", path))(t)
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	const answer = "HTTP/1.1 200 Connection Established\r\n\r\n"
	fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nping", target)
	got := make([]byte, len(answer)+len("ping"))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != answer+"ping" {
		t.Errorf("%q, %v", got, err)
	}
	c.Close()
	stopInOrder(t, next.Process)
	if _, err := os.Lstat(path); err == nil {
		t.Error("the socket outlived its sidecar")
	}
}

// listensAt waits for a sidecar's socket, which comes after its port, and for its
// mode, which is narrower at first.
func listensAt(t *testing.T, p *suite.Sidecar, path string, mode os.FileMode) {
	t.Helper()
	if err := suite.WaitListening(p.Process, "unix", path); err != nil {
		t.Fatal(err)
	}
	eventually(t, patience, "the socket's mode", func() (bool, any) {
		info := must(os.Lstat(path))(t)
		return info.Mode().Perm() == mode, info.Mode()
	})
}
