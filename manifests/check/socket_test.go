package check

import (
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"konnectivity/internal/testutil"
)

// socketVolume is the volume of the server's socket, in every pod that has one.
const socketVolume = "konnectivity-socket"

// socketFolder is where a pod has the socket's folder from, and where a
// container has it.
func socketFolder(t *testing.T, p pod, container string) (host *corev1.HostPathVolumeSource, path string) {
	t.Helper()
	i := slices.IndexFunc(p.spec.Volumes, func(v corev1.Volume) bool { return v.Name == socketVolume })
	j := slices.IndexFunc(p.spec.Containers, func(c corev1.Container) bool { return c.Name == container })
	testutil.Requires(t, i >= 0 && j >= 0,
		"%s has no volume %s or no container %s", p.folder, socketVolume, container)
	for _, m := range p.spec.Containers[j].VolumeMounts {
		if m.Name == socketVolume {
			return p.spec.Volumes[i].HostPath, m.MountPath
		}
	}
	t.Fatalf("%s: %s does not mount %s", p.folder, container, socketVolume)
	return nil, ""
}

// TestSocketClient dials by gRPC, by the socket that the example's environment
// names, as the controller would.
func TestSocketClient(t *testing.T) {
	client := pods(socketClient, build(t, socketClient))[0]
	shared, server := only(t, sharedPod)
	from, mounted := socketFolder(t, client, "csi-driver")
	to, folder := socketFolder(t, shared, server.Name)
	testutil.Requires(t, to != nil && from != nil && from.Path == to.Path,
		"the client has the socket's folder from %v, the server from %v", from, to)
	named := client.spec.Containers[0].Env[0].Value
	testutil.Equal(t, strings.Replace(named, mounted, folder, 1), argument(server, "uds-name"), "the client dials")
	if groups := client.spec.SecurityContext.SupplementalGroups; !slices.Contains(groups, *server.SecurityContext.RunAsGroup) {
		t.Errorf("a client in the groups %v may not open the server's socket", groups)
	}

	w := newWorld(t)
	s := w.server(sharedPod)
	agent := w.agent("agent/daemonset-token", s)
	target := httptest.NewServer(nil)
	t.Cleanup(target.Close)
	before := dialed(t, agent)
	dial := exec.Command(programs.Path("konnectivity"), "dial", "--via=grpc://"+s.UDS, target.Listener.Addr().String())
	dial.Stdin = strings.NewReader("GET / HTTP/1.0\r\n\r\n")
	out, err := dial.CombinedOutput()
	testutil.Holds(t, err == nil && strings.Contains(string(out), "404 Not Found"), "%v: %s", err, out)
	testutil.AtLeast(t, dialed(t, agent), before+1, "dials by the tunnel")
	for _, process := range slices.Backward(w.suite.Processes()) {
		w.stop(process)
	}
}
