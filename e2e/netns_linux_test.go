package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"konnectivity/e2e/suite"
)

// netns is a network namespace of a test's own.
type netns string

// made is how many there are, so that each has a name of its own.
var made atomic.Int64

// newNetns makes one with loopback up. Only root can.
func newNetns(t *testing.T, name string) netns {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	ns := netns(fmt.Sprintf("k%d-%d-%s", os.Getpid(), made.Add(1), name))
	mustRun(t, "ip", "netns", "add", string(ns))
	t.Cleanup(func() { mustRun(t, "ip", "netns", "delete", string(ns)) })
	mustRun(t, "ip", "-n", string(ns), "link", "set", "lo", "up")
	return ns
}

// mustRun runs a program of the system to its end.
func mustRun(t testing.TB, program string, args ...string) string {
	t.Helper()
	return must(command(t, nil, program, args...))(t)
}

func (ns netns) path() string { return filepath.Join("/run/netns", string(ns)) }

// ip runs ip(8) in it.
func (ns netns) ip(t *testing.T, line string) {
	t.Helper()
	mustRun(t, "ip", append([]string{"-n", string(ns)}, strings.Fields(line)...)...)
}

// args are those of nsenter for a command line in it.
func (ns netns) args(line ...string) []string {
	return append([]string{"--net=" + ns.path()}, line...)
}

// run runs a program in it to its end.
func (ns netns) run(t testing.TB, line ...string) (string, error) {
	t.Helper()
	return command(t, nil, "nsenter", ns.args(line...)...)
}

// start starts a program in it, until the test ends.
func (ns netns) start(t *testing.T, line ...string) *suite.Process {
	t.Helper()
	return ns.startWith(t, nil, line...)
}

// startWith is start with an environment.
func (ns netns) startWith(t *testing.T, env []string, line ...string) *suite.Process {
	t.Helper()
	p := must(suite.Start(filepath.Base(line[0]), programPath(t, "nsenter"), ns.args(line...), env))(t)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() {
			t.Logf("--- %q\n%s", line, p.Output())
		}
	})
	return p
}

// listen opens a port in it. The socket stays there, whoever uses it.
func (ns netns) listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l := must(inside(ns, func() (net.Listener, error) { return net.Listen("tcp", address) }))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// inside opens a socket in ns.
func inside[T any](ns netns, open func() (T, error)) (T, error) {
	type result struct {
		socket T
		err    error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // and ends with the goroutine, since it is of another namespace
		var r result
		file, err := os.Open(ns.path())
		if err == nil {
			defer file.Close()
			err = unix.Setns(int(file.Fd()), unix.CLONE_NEWNET)
		}
		if r.err = err; err == nil {
			r.socket, r.err = open()
		}
		done <- r
	}()
	r := <-done
	return r.socket, r.err
}

// awaitOK waits until a URL answers in it.
func (ns netns) awaitOK(t *testing.T, p *suite.Process, url string) {
	t.Helper()
	eventually(t, patience, url, func() (bool, any) {
		_, err := ns.run(t, "curl", "--silent", "--fail", "--max-time", "20", "--noproxy", "*", url)
		return err == nil, fmt.Sprint(err, "\n", p.Output())
	})
}

// A host that has no IPv4 loopback is reached by IPv6 at ports that listen on all addresses.
func TestPortsOfAHostWithoutIPv4Loopback(t *testing.T) {
	t.Parallel() // it waits
	ns, pki := newNetns(t, "six"), newSuite(t).PKI
	ns.ip(t, "address delete 127.0.0.1/8 dev lo")
	for port, host := range map[string]string{"8093": "", "8094": "::"} {
		agent := ns.start(t, binaries.Path("konnectivity-agent"), "--health-server-host="+host, "--health-server-port="+port, "--admin-server-port=0",
			"--ca-cert="+pki("ca.crt"), "--agent-cert="+pki("agent.crt"), "--agent-key="+pki("agent.key"))
		ns.awaitOK(t, agent, "http://[::1]:"+port+"/healthz")
	}
}
