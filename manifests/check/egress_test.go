package check

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"konnectivity/internal/testutil"
)

// container is one of p.
func (p pod) container(t *testing.T, name string) corev1.Container {
	t.Helper()
	i := slices.IndexFunc(p.spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	testutil.Requires(t, i >= 0, "%s has no container %s", p.folder, name)
	return p.spec.Containers[i]
}

// egressConfig is the file that kube-apiserver reads, whether a config map or the
// node has it.
func egressConfig(t *testing.T, p pod) []byte {
	t.Helper()
	for _, v := range p.spec.Volumes {
		if v.Name != "konnectivity-egress" {
			continue
		}
		if v.ConfigMap == nil {
			return testutil.Must(os.ReadFile(filepath.Join(manifests, "sidecars/static-pod", filepath.Base(v.HostPath.Path))))(t)
		}
		data := testutil.Must(p.configMap(v.ConfigMap.Name))(t)
		return []byte(data["egress-selector-configuration.yaml"])
	}
	t.Fatalf("%s has no volume konnectivity-egress", p.folder)
	return nil
}

// TestEgressBySidecar dials by the socket in kube-apiserver's configuration, with the
// sidecar's own arguments, a destination that only the agent can reach.
func TestEgressBySidecar(t *testing.T) {
	w := newWorld(t)
	s := w.server("server/hosted")
	agent := w.agent("agent/daemonset", s)
	all := startTargets(t)
	for _, folder := range besideAPI {
		p, sidecar := only(t, folder)
		socket := argument(sidecar, "serving-uds")
		testutil.Equal(t, clusterEgress(t, egressConfig(t, p)).UDS.UDSName, socket, "%s: kube-apiserver asks", folder)
		if host, path := socketFolder(t, p, "kube-apiserver"); host != nil || path != filepath.Dir(socket) {
			t.Errorf("%s: kube-apiserver has the socket's folder at %s, from %v", folder, path, host)
		}
		c := p.container(t, "kube-apiserver")
		if config := append(c.Command, c.Args...); !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool {
			return m.Name == "konnectivity-egress" &&
				(config[len(config)-1] == "--egress-selector-config-file="+m.MountPath || config[len(config)-1] == "--egress-selector-config-file="+m.MountPath+"/egress-selector-configuration.yaml")
		}) {
			t.Errorf("%s: kube-apiserver has %v and mounts %v", folder, config, c.VolumeMounts)
		}
		process, ports := w.sidecar(p, s)
		testutil.Holds(t, len(ports) == 0 && len(sidecar.Env) == 0,
			"%s: the sidecar has ports %v and the environment %v", folder, ports, sidecar.Env)
		before := dialed(t, agent)
		all.askBySocket(t, w.egress)
		testutil.AtLeast(t, dialed(t, agent), before+1, "%s: dials by the tunnel", folder)
		w.stop(process)
	}
}

// askBySocket fetches by CONNECT over a unix socket.
func (all targets) askBySocket(t *testing.T, path string) {
	t.Helper()
	fetch(t, &http.Transport{
		Proxy: http.ProxyURL(&url.URL{Scheme: "http", Host: "127.0.0.1"}),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		},
	}, all.secure.URL)
}

// socketVolume is the volume of the server's socket, in every pod that has one.
const socketVolume = "konnectivity-socket"

// socketFolder returns the folder of the host that a pod mounts for the socket, and where a
// container mounts it.
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
