package e2e

import (
	"bytes"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"konnectivity/e2e/line"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

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
