package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/proxy"

	"konnectivity/internal/testutil"
	"konnectivity/tunnel"
)

// TestAgentWithFewDescriptors: connections leave some to probes and to links, also
// where they go on without a link, and who is refused hears why.
func TestAgentWithFewDescriptors(t *testing.T) {
	t.Parallel()
	s := newSuite(t)
	srv := must(s.StartServer())(t)
	s.Descriptors = descriptors
	agent := must(s.StartAgent(srv, "--resume-window=10m"))(t)
	s.Descriptors = 0
	target := testutil.Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
	front := viaConnect("unix", srv.UDS, nil)
	served := 0
	for range descriptors {
		c, err := front.Dial(within(t, patience), tunnel.NewFlow("tcp", target))
		var refused *statusError
		if err == nil {
			served++
			t.Cleanup(func() { _ = c.Close() })
		} else if !errors.As(err, &refused) || refused.status != http.StatusServiceUnavailable {
			t.Fatalf("after %d: %v", served, err)
		}
	}
	testutil.AtLeast(t, served, descriptors/2, "clients that are served")
	open := len(must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", agent.PID())))(t))
	testutil.AtMost(t, open, descriptors-descriptors/16, "descriptors that are taken") // a probe or two may be there
	srv.Kill()
	testutil.NoError(t, s.RunServer(srv))
	ready(t, srv, 1, patience)
	// The server may count the agent before the agent counts the server.
	eventually(t, patience, "readiness", func() (bool, any) {
		answer, status := page(agent.HealthURL("/readyz"))
		return status == http.StatusOK, answer
	})
}

// descriptors are those of a program that has few.
const descriptors = 128

// sidecarWithFew starts a sidecar that may have no more descriptors.
func sidecarWithFew(t *testing.T) *observed {
	t.Helper()
	w := newTunnel(t)
	w.Descriptors = descriptors
	s := w.sidecar(t, "konnectivity-socks5-proxy", []string{"KUBECONFIG="}, "--link=off")
	w.Descriptors = 0
	return s
}

// TestSidecarWithFewDescriptors: clients that are served leave some to probes,
// also where each of them takes two, and who is refused hears why.
func TestSidecarWithFewDescriptors(t *testing.T) {
	t.Parallel()
	socks := sidecarWithFew(t)
	target := testutil.Serve(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
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
	testutil.Equal(t, served, descriptors/4, "clients that are served")
	socks.leavesDescriptors(t)
}

// leavesDescriptors looks whether some descriptors are free, and health answers.
func (s *observed) leavesDescriptors(t *testing.T) {
	t.Helper()
	// Clients that were refused leave in a moment; kept connections stay for 30 s.
	testutil.Within(t, 25*time.Second, "24 descriptors are free", func() bool {
		return len(must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.PID())))(t)) <= descriptors-24
	})
	testutil.Contains(t, string(must(curl(t, "http://"+s.health+"/healthz"))(t)), "ok", "health")
}
