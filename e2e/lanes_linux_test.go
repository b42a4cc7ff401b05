package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"konnectivity/e2e/line"
	"konnectivity/e2e/suite"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

// farLine is one that has more under way than a socket can send, so that one connection
// is not enough. Its packets are large, and Reno doubles how many are under way until
// one is lost: so it is filled soon, also by a machine that has other things to do.
var farLine = line.Config{Delay: 200 * time.Millisecond, Rate: 100e6, MTU: 32 << 10}

// Transfers that share a far line each get a lane of it, by default, and move there
// with no byte lost.
func TestLanesOnAFarLine(t *testing.T) {
	t.Parallel() // it waits
	if err := line.Possible(); err != nil {
		t.Skip(err)
	}
	l := must(line.New(farLine))(t)
	t.Cleanup(func() { _ = l.Close() })
	near, far := endOf(l.A), endOf(l.B)
	must(far.run(t, "sh", "-c", "echo reno >/proc/sys/net/ipv4/tcp_congestion_control"))(t)
	front, server, agent := startAcross(t, near, far)

	source := far.listen(t, line.AddrB.String()+":0")
	testutil.ServeOn(t, source, func(c *net.TCPConn) { _, _ = io.Copy(c, newPayload(0, 1<<40)) }) // without an end
	const transfers = 4
	var got [transfers]atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for i := range transfers {
		c := dialed(t, viaConnect("unix", front, nil), source.Addr().String())
		all.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = c.Close() })()
			if err := readPayload(c, &got[i]); ctx.Err() == nil {
				t.Errorf("transfer %d, after %d bytes: %v", i, got[i].Load(), err)
			}
		})
	}
	await := func(what string, done func() bool) {
		t.Helper()
		eventually(t, patience, what, func() (bool, any) {
			toFar, toNear := l.Counters()
			return done() || t.Failed(), fmt.Sprintf("the line: %+v, %+v\n%s\n%s", toFar, toNear, server.Output(), agent.Output())
		})
	}
	// All but one, should one pause as the others move.
	await("a lane for each transfer", func() bool { return far.metric(t, 8093, "konnectivity_network_proxy_agent_link_lanes") >= transfers })
	await("they have moved", func() bool {
		return near.metric(t, 8092, "konnectivity_network_proxy_server_resumed_connections_total") >= transfers-1
	})
	for i := range got {
		before := got[i].Load()
		await("a transfer that has moved goes on", func() bool { return got[i].Load() > before+1<<20 })
	}
}

// endOf is the namespace at one end of a line.
func endOf(end *line.Namespace) netns {
	return netns(fmt.Sprintf("../../proc/%d/fd/%d", os.Getpid(), end.File().Fd()))
}

// startAcross starts a server at one end of a line, with a socket as its front, and
// its agent at the other.
func startAcross(t *testing.T, near, far netns) (front string, server, agent *suite.Process) {
	t.Helper()
	s := newSuite(t)
	ca := newAuthority(t, s, "line-ca")
	leaf := pki.Leaf{CommonName: "cluster", IPs: []net.IP{line.AddrA.AsSlice()}, Server: true}
	cert, key := ca.make(t, leaf, time.Now().Add(-time.Hour), time.Now().Add(day))
	front = filepath.Join(s.Dir, "front.sock")
	server = near.start(t, binaries.Path("konnectivity-server"), "--mode=http-connect", "--server-port=0", "--uds-name="+front, "--backend-dial-timeout="+suite.DialBound.String(),
		"--cluster-ca-cert="+s.PKI("ca.crt"), "--cluster-cert="+cert, "--cluster-key="+key)
	near.awaitOK(t, server, "http://127.0.0.1:8092/healthz")
	agent = far.start(t, binaries.Path("konnectivity-agent"), "--proxy-server-host="+line.AddrA.String(), "--dial-timeout="+suite.DialBound.String(),
		"--ca-cert="+ca.file, "--agent-cert="+s.PKI("agent.crt"), "--agent-key="+s.PKI("agent.key"))
	far.awaitOK(t, agent, "http://127.0.0.1:8093/readyz")
	return front, server, agent
}

// readPayload counts what it reads until that is no payload any more.
func readPayload(r io.Reader, count *atomic.Int64) error {
	got, want := make([]byte, 64<<10), make([]byte, 64<<10)
	for payload := newPayload(0, 1<<40); ; {
		n, err := r.Read(got)
		if err != nil {
			return err
		}
		if _, err := io.ReadFull(payload, want[:n]); err != nil {
			return err
		}
		if !bytes.Equal(got[:n], want[:n]) {
			return fmt.Errorf("other bytes than were sent")
		}
		count.Add(int64(n))
	}
}

// metric is the sum of a metric of a process there; 0 if it shows none.
func (ns netns) metric(t *testing.T, port int, name string) (sum float64) {
	t.Helper()
	page := must(ns.run(t, "curl", "--silent", "--fail", "--max-time", "20", "--noproxy", "*", fmt.Sprintf("http://127.0.0.1:%d/metrics", port)))(t)
	for _, line := range regexp.MustCompile(`(?m)^`+name+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(page, -1) {
		value := testutil.Must(strconv.ParseFloat(line[1], 64))(t)
		sum += value
	}
	return sum
}

// A line that loses large packets without a word, as one with a tunnel in it does behind a
// firewall that drops ICMP, takes agents and sidecars longer to connect, and check says why.
func TestLargePacketsAreLost(t *testing.T) {
	t.Parallel()
	if err := line.Possible(); err != nil {
		t.Skip(err)
	}
	for name, way := range map[string]struct {
		line line.Config
		says string
	}{
		"both ways":       {line.Config{Hole: 1300}, "does not receive what is sent"},
		"from the server": {line.Config{Hole: 1300, HoleB: true}, "sends what does not arrive"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // it waits
			overAHole(t, way.line, way.says)
		})
	}
}

// overAHole runs the suite over a line, of which check says so.
func overAHole(t *testing.T, of line.Config, says string) {
	l := must(line.New(of))(t)
	t.Cleanup(func() { _ = l.Close() })
	near, far := endOf(l.A), endOf(l.B)
	s := newSuite(t)
	ca := newAuthority(t, s, "line-ca")
	leaf := pki.Leaf{CommonName: "server", IPs: []net.IP{line.AddrA.AsSlice()}, Server: true}
	cert, key := ca.make(t, leaf, time.Now().Add(-time.Hour), time.Now().Add(day))
	server := near.start(t, binaries.Path("konnectivity-server"),
		"--server-ca-cert="+s.PKI("ca.crt"), "--server-cert="+cert, "--server-key="+key,
		"--cluster-ca-cert="+s.PKI("ca.crt"), "--cluster-cert="+cert, "--cluster-key="+key)
	near.awaitOK(t, server, "http://127.0.0.1:8092/healthz")
	asClient := func(program string, args ...string) []string {
		return append([]string{binaries.Path(program)}, append(args, "--konnectivity-hostname="+line.AddrA.String(),
			"--ca-cert-path="+ca.file, "--tls-cert-path="+s.PKI("client.crt"), "--tls-key-path="+s.PKI("client.key"))...)
	}

	out, err := far.run(t, asClient("konnectivity", "check")...)
	if err == nil || !strings.Contains(out, says+"; large packets may be lost on the way") || !strings.Contains(out, "clamp the MSS") {
		t.Errorf("check: %v\n%s", err, out)
	}
	front := filepath.Join(s.Dir, "front.sock")
	sidecar := far.start(t, asClient("konnectivity-https-proxy", "--serving-port=0", "--serving-uds="+front, "--health-address=127.0.0.1:8094")...)
	agent := far.start(t, binaries.Path("konnectivity-agent"), "--proxy-server-host="+line.AddrA.String(),
		"--admin-server-port=0", "--ca-cert="+ca.file, "--agent-cert="+s.PKI("agent.crt"), "--agent-key="+s.PKI("agent.key"))
	far.awaitOK(t, agent, "http://127.0.0.1:8093/readyz")
	far.awaitOK(t, sidecar, "http://127.0.0.1:8094/readyz")

	target := far.listen(t, line.AddrB.String()+":0")
	testutil.ServeOn(t, target, func(c *net.TCPConn) { _, _ = io.Copy(c, c) })
	c := dialed(t, viaConnect("unix", front, nil), target.Addr().String())
	sent := bytes.Repeat([]byte("large"), 100_000)
	go func() { _, _ = c.Write(sent) }()
	got := make([]byte, len(sent))
	testutil.Must(io.ReadFull(c, got))(t)
	testutil.Equal(t, bytes.Equal(got, sent), true, "the bytes return")
}
