package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"testing"

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
	target := listen(t, func(c *net.TCPConn) { _, _ = io.Copy(io.Discard, c) })
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
	if served < descriptors/2 {
		t.Errorf("only %d are served", served)
	}
	if open := len(must(os.ReadDir(fmt.Sprintf("/proc/%d/fd", agent.PID())))(t)); open > descriptors-descriptors/16 { // a probe or two may be there
		t.Errorf("%d of %d descriptors are taken", open, descriptors)
	}
	srv.Kill()
	testutil.NoError(t, s.RunServer(srv))
	ready(t, srv, 1, patience)
	// The server may count the agent before the agent counts the server.
	eventually(t, patience, "readiness", func() (bool, any) {
		answer, status := page(agent.HealthURL("/readyz"))
		return status == http.StatusOK, answer
	})
}
