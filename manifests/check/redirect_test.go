package check

import (
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"konnectivity/e2e/suite"
	"konnectivity/internal/testutil"
)

// proxyless is the example of an application without a proxy setting.
const proxyless = "sidecars/examples/prometheus-transparent"

// redirector is the container of p that redirects.
func redirector(t *testing.T, p pod) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(p.spec.InitContainers, func(c corev1.Container) bool { return c.Name == "konnectivity-redirect" })
	testutil.Requires(t, i >= 0, "%s redirects nothing", p.folder)
	return p.spec.InitContainers[i]
}

// TestRedirectingExample checks that the rules redirect all processes to the sidecar,
// except the sidecar.
func TestRedirectingExample(t *testing.T) {
	p := pods(proxyless, build(t, proxyless))[0]
	redirect, sidecar := redirector(t, p), p.ours()[0]
	if port := argument(sidecar, "transparent-port"); port == "" || port != argument(redirect, "transparent-port") {
		t.Errorf("connections go to port %s, the sidecar has %s", argument(redirect, "transparent-port"), port)
	}
	testutil.Equal(t, argument(redirect, "uid"), strconv.FormatInt(*sidecar.SecurityContext.RunAsUser, 10),
		"the user that is left alone, which is the sidecar")
	for _, c := range p.spec.Containers {
		if s := c.SecurityContext; s == nil || s.RunAsUser == nil || *s.RunAsUser == *sidecar.SecurityContext.RunAsUser {
			t.Errorf("%s may run as the sidecar's user, so nothing of it is redirected", c.Name)
		}
	}
	testutil.Holds(t, sidecar.StartupProbe != nil, "the program may start before the sidecar")
	s := redirect.SecurityContext
	testutil.Holds(t, *s.RunAsUser == 0 && slices.Equal(s.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}),
		"it may not set rules")
	s = s.DeepCopy() // but for these two, it is as restricted as others
	s.RunAsNonRoot, s.Capabilities.Add = sidecar.SecurityContext.RunAsNonRoot, nil
	testutil.Equal(t, len(unsafe(nil, s)), 0, "faults, of %v", unsafe(nil, s))

	w := newWorld(t)
	server := w.server("server/hosted")
	process, moved := w.sidecar(p, server)
	front := suite.Loopback(moved[argument(sidecar, "transparent-port")])
	c, err := net.Dial("tcp", front)
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		_, err = c.Read(make([]byte, 1))
		_ = c.Close()
	}
	testutil.ErrorIs(t, err, syscall.ECONNRESET, "%s, of who was not redirected", front)
	w.stop(process)
	w.stop(server.Process)
}

// TestRedirectingArguments sets the rules of the example, in a network namespace
// that ends with the command.
func TestRedirectingArguments(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	c := redirector(t, pods(proxyless, build(t, proxyless))[0])
	args := append([]string{"--net", programs.Path(program(t, c))}, c.Args...)
	out, err := exec.Command("unshare", args...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "now go to port "+argument(c, "transparent-port")) {
		t.Errorf("%v: %s", err, out)
	}
}
