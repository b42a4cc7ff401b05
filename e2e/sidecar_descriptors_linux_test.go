package e2e

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/net/proxy"
)

// TestSidecarWithFewDescriptors: clients that are served leave some to probes,
// also where each of them takes two, and who is refused hears why.
func TestSidecarWithFewDescriptors(t *testing.T) {
	t.Parallel()
	const descriptors = 128
	w := newTunnel(t)
	w.Descriptors = descriptors
	socks := w.sidecar(t, "konnectivity-socks5-proxy", []string{"KUBECONFIG="}, "--link=off")
	w.Descriptors = 0
	target := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	front := must(proxy.SOCKS5("tcp", socks.Address(), nil, nil))(t).(proxy.ContextDialer)
	served := 0
	for range descriptors {
		c, err := front.DialContext(context.Background(), "tcp", target)
		if err == nil {
			served++
			t.Cleanup(func() { _ = c.Close() })
		} else if !strings.Contains(err.Error(), "general SOCKS server failure") {
			t.Fatalf("after %d: %v", served, err)
		}
	}
	if served != descriptors/4 {
		t.Errorf("%d clients are served", served)
	}
	if open := len(must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", socks.PID())))(t)); open > descriptors-16 {
		t.Errorf("%d of %d descriptors are taken", open, descriptors)
	}
	if answer, err := curl(t, "http://"+socks.health+"/healthz"); err != nil || len(answer) == 0 {
		t.Errorf("health: %q, %v", answer, err)
	}
}
