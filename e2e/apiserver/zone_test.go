package apiserver

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/internal/testutil"
)

// zone is the nodes' network. Its listeners take connections that processes of the
// agents opened, and close all others, as a network with only agents in it would. All
// of it is on loopback, so the kernel tells which process is at the other end.
type zone struct {
	taken, refused atomic.Int64

	mu     sync.Mutex
	agents map[int]bool // process ids
}

func newZone() *zone { return &zone{agents: map[int]bool{}} }

// admit lets an agent's process in.
func (z *zone) admit(pid int) {
	z.mu.Lock()
	defer z.mu.Unlock()
	z.agents[pid] = true
}

// listen takes a free port of ip, which is on loopback.
func (z *zone) listen(t *testing.T, ip string) net.Listener {
	t.Helper()
	l := testutil.Must(net.Listen("tcp4", net.JoinHostPort(ip, "0")))(t)
	return &gate{l, z}
}

// gate is a listener of a zone.
type gate struct {
	net.Listener
	zone *zone
}

// Accept returns the next connection of an agent.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if g.zone.fromAgent(c) {
			g.zone.taken.Add(1)
			return c, nil
		}
		g.zone.refused.Add(1)
		_ = c.Close()
	}
}

func (z *zone) fromAgent(c net.Conn) bool {
	inode, err := socketBetween(c.RemoteAddr().(*net.TCPAddr), c.LocalAddr().(*net.TCPAddr))
	if err != nil {
		return false
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	for pid := range z.agents {
		if holds(pid, inode) {
			return true
		}
	}
	return false
}

// socketBetween is the inode of the socket that is bound to local and connected
// to remote (proc_pid_net(5), tcp).
func socketBetween(local, remote *net.TCPAddr) (inode string, err error) {
	file, err := os.Open("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	defer file.Close()
	want := [2]string{procAddress(local), procAddress(remote)}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) > 9 && [2]string{f[1], f[2]} == want {
			return f[9], nil
		}
	}
	return "", fmt.Errorf("no socket between %v and %v: %v", local, remote, lines.Err())
}

// procAddress is how the kernel prints an IPv4 address and port.
func procAddress(a *net.TCPAddr) string {
	return fmt.Sprintf("%08X:%04X", binary.NativeEndian.Uint32(a.IP.To4()), a.Port)
}

// holds says whether a process has a socket open.
func holds(pid int, inode string) bool {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	for _, fd := range fds {
		if to, err := os.Readlink(filepath.Join(dir, fd.Name())); err == nil && to == "socket:["+inode+"]" {
			return true
		}
	}
	return false
}

// TestZone shows that only agents reach the zone, which the other tests rely on.
func TestZone(t *testing.T) {
	z := newZone()
	l := z.listen(t, nodeIP)
	var accepting sync.WaitGroup
	accepting.Go(func() { _, _ = l.Accept() }) // until it is closed
	c := must(net.Dial("tcp", l.Addr().String()))(t)
	_ = c.SetDeadline(time.Now().Add(patience))
	testutil.Fails(t, testutil.Err(c.Read(make([]byte, 1))), "a read")
	_, _ = c.Close(), l.Close()
	accepting.Wait()
	testutil.Equal(t, z.refused.Load(), 1, "connections that are refused")
	testutil.Equal(t, z.taken.Load(), 0, "connections that are taken")
}
