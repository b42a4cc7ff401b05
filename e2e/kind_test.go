package e2e

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"konnectivity/internal/testutil"
)

// kindWorld stands for docker and what kind's nodes have: each node is a folder, in which
// its commands run, and what of Kubernetes they call is noted.
var kindWorld = map[string]string{
	"docker": `case $1 in
cp) to=$WORLD/${3/:/} && mkdir -p "$(dirname "$to")" && cp -r "$2" "$to" ;;
exec)
	shift
	while case $1 in -i) shift ;; -*) shift 2 ;; *) false ;; esac do :; done
	export NODE=$1 && node=$WORLD/$1 && shift
	if [ "$1" != bash ]; then exec "${@:1:$#-1}" "$node${!#}"; fi
	cd "$node/konnectivity"
	PATH=$node/usr/local/bin:$PATH bash -euo pipefail -c "$(sed "s#/etc/kubernetes#$node/etc/kubernetes#g; s#/root/#$node/root/#g")" ;;
esac`,
	"kubectl": `case $* in
*metadata.name*) printf 'one\ntwo\n' ;;
*InternalIP*) printf '192.0.2.1 2001:db8::1\n192.0.2.2\n' ;;
*kubeadm-config*) echo 'apiVersion: kubeadm.k8s.io/v1beta4' ;;
*) echo "${NODE:-here}: kubectl ${*//$WORLD}" >> "$WORLD/log" ;;
esac`,
	"kubeadm": `echo "$NODE: kubeadm ${*//$WORLD}" >> "$WORLD/log"`,
	"kind":    `echo "here: kind $*" >> "$WORLD/log"`,
	"curl":    ``,
	"chown":   ``,
}

// manifests/kind/install makes certificates on each node that all addresses are good
// for, signed by one CA, and has kubeadm write the pod once the agents are there.
func TestInstallOnKind(t *testing.T) {
	world := t.TempDir()
	for name, text := range kindWorld {
		writeScript(t, filepath.Join(world, "bin", name), text)
	}
	for _, node := range []string{"one", "two"} {
		writeScript(t, filepath.Join(world, node, "etc/kubernetes/manifests/kube-apiserver.yaml"), "    - --advertise-address=192.0.2.9\n    - --secure-port=6443\n")
		testutil.NoError(t, os.MkdirAll(filepath.Join(world, node, "root"), 0o700))
	}
	cmd := exec.Command("manifests/kind/install", "dist/konnectivity_1.2.3_oci.tar", "mine")
	cmd.Dir = ".."
	cmd.Env = append(os.Environ(), "WORLD="+world, "PATH="+filepath.Join(world, "bin")+":"+os.Getenv("PATH"), "KONNECTIVITY="+binaries.Path("konnectivity"))
	out, err := cmd.CombinedOutput()
	testutil.Requires(t, err == nil, "%v\n%s", err, out)
	log := strings.Split(strings.TrimSpace(readText(t, world, "log")), "\n")
	want := []string{
		"here: kind load image-archive dist/konnectivity_1.2.3_oci.tar --name mine",
		"one: kubeadm kubeconfig user --config=/one/etc/kubernetes/kubeadm.yaml --client-name=system:konnectivity-server",
		"one: kubectl apply -k manifests/server/static-pod",
		"one: kubectl apply -f /one/etc/kubernetes/konnectivity/pki/kubernetes-data-plane.yaml",
		"two: kubeadm kubeconfig user --config=/two/etc/kubernetes/kubeadm.yaml --client-name=system:konnectivity-server",
		"one: kubectl apply -k agents",
		"one: kubeadm init phase control-plane apiserver --config=/one/etc/kubernetes/kubeadm.yaml",
		"two: kubeadm init phase control-plane apiserver --config=/two/etc/kubernetes/kubeadm.yaml",
		"here: kubectl --context kind-mine -n kube-system rollout status ds/konnectivity-agent --timeout=5m",
		"one: kubectl -n kube-system logs ds/konnectivity-agent",
	}
	testutil.EqualSlices(t, log, want, "what it did")
	for file, has := range map[string]string{
		"one/konnectivity/agents/kustomization.yaml":                `"server-host=192.0.2.1,192.0.2.2"`,
		"one/etc/kubernetes/patches/kube-apiserver0+strategic.yaml": "image: docker.io/library/konnectivity:v1.2.3\n",
		"two/etc/kubernetes/patches/kube-apiserver0+strategic.yaml": "image: docker.io/library/konnectivity:v1.2.3\n",
		"two/etc/kubernetes/kubeadm.yaml":                           "advertiseAddress: 192.0.2.9\n",
	} {
		testutil.Contains(t, readText(t, world, file), has, "%s", file)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(readText(t, world, "one/etc/kubernetes/konnectivity/pki/ca.crt")))
	for _, node := range []string{"one", "two"} {
		block, _ := pem.Decode([]byte(readText(t, world, node+"/etc/kubernetes/konnectivity/pki/cluster.crt")))
		cert := must(x509.ParseCertificate(block.Bytes))(t)
		for _, address := range []string{"192.0.2.1", "192.0.2.2"} {
			testutil.Succeeds(t, testutil.Err(cert.Verify(x509.VerifyOptions{Roots: pool, DNSName: address})),
				"the certificate of %s", node)
		}
	}
	left, _ := filepath.Glob(filepath.Join(world, "*/konnectivity/ca"))
	testutil.Holds(t, left == nil, "the CA's key is left in %v", left)
}

func writeScript(t *testing.T, path, text string) {
	t.Helper()
	testutil.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	testutil.NoError(t, os.WriteFile(path, []byte("#!/bin/bash\nset -euo pipefail\n"+text+"\n"), 0o755))
}

func readText(t *testing.T, path ...string) string {
	t.Helper()
	return string(must(os.ReadFile(filepath.Join(path...)))(t))
}
