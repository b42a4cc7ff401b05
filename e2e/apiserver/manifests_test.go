package apiserver

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"konnectivity/internal/testutil"
)

// direct is an egress selector configuration without a tunnel.
const direct = `apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections: [{name: cluster, connection: {proxyProtocol: Direct}}]
`

// ofOperators are folders whose kinds an operator must have brought.
var ofOperators = []string{"monitoring", "monitoring-kube-prometheus-stack", "pki/cert-manager"}

// restricted defines namespaces that enforce the "restricted" pod security standard.
const restricted = `
apiVersion: v1
kind: Namespace
metadata: {name: my-control-plane, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: my-control-plane}
`

// folders are all kustomizations that are for `kubectl apply -k`.
func folders(t *testing.T) (all []string) {
	t.Helper()
	err := filepath.WalkDir(manifests, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || filepath.Base(path) != "kustomization.yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		folder, _ := filepath.Rel(manifests, filepath.Dir(path))
		if !bytes.Contains(data, []byte("kind: Component")) && folder != "agent/base" && !strings.HasPrefix(folder, "check/") && !slices.Contains(ofOperators, folder) {
			all = append(all, folder)
		}
		return err
	})
	testutil.Requires(t, err == nil && len(all) >= 15, "kustomizations found: %v, %v", all, err)
	return all
}

// TestManifests gives every object to the API, and every pod to its admission.
func TestManifests(t *testing.T) {
	p := newControlPlane(t)
	p.addAPI(direct)
	p.define()
	p.apply(restricted)
	pki := p.file("certs")
	if out, err := exec.Command(binaries.Path("konnectivity"), "certs", pki, "--kubernetes", "--namespace=my-control-plane").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p.do("apply", "--validate=strict", "--warnings-as-errors", "-f", pki+"/kubernetes-control-plane.yaml", "-f", pki+"/kubernetes-data-plane.yaml")
	for _, folder := range append(folders(t), staticPod) {
		t.Run(folder, func(t *testing.T) {
			p.t = t
			if folder == "agent/daemonset-pod-certificate" {
				if _, err := p.try("", "get", "--raw", PodCertificates); err != nil {
					t.Skip("needs Kubernetes 1.37: ", err)
				}
			}
			objects := p.build(folder)
			if folder != staticPod && folder != "agent/static-pod" { // which kubeadm makes, and kubelet reads
				p.applyFolder(folder, objects)
			}
			for _, object := range objects {
				p.admit(object)
			}
		})
	}
}

// applyFolder applies one as its README says.
func (p *controlPlane) applyFolder(folder string, objects []string) {
	p.t.Helper()
	args := []string{"apply", "--validate=strict", "-k", filepath.Join(manifests, folder)}
	if !strings.Contains(strings.Join(objects, "\n"), "\n  namespace: kube-system\n") {
		args = append(args, "-n", "my-control-plane")
	}
	p.do(args...)
	for line := range strings.Lines(p.do(append(args, "--dry-run=server")...)) {
		// kubectl replaces the selector of a disruption budget by itself each time.
		testutil.Holds(p.t, strings.Contains(line, " unchanged ") || strings.HasPrefix(line, "poddisruptionbudget"),
			"applied once more something changes: %s", line)
	}
}

// ofTheHost are complaints about what pods need that are in the node's network,
// or in kube-apiserver's pod.
var ofTheHost = regexp.MustCompile(`^(host namespaces|hostPort|hostPath volumes|restricted volume types) `)

// admit creates the pod of a workload, if it is one, with our container alone,
// and throws it away.
func (p *controlPlane) admit(object string) {
	p.t.Helper()
	var w workload
	testutil.NoError(p.t, yaml.Unmarshal([]byte(object), &w))
	spec := w.Spec.Template.Spec
	if len(spec.Containers) == 0 {
		spec = w.Spec.PodSpec
	}
	spec.Containers = slices.DeleteFunc(spec.Containers, func(c corev1.Container) bool { return c.Image != "konnectivity:latest" })
	if len(spec.Containers) == 0 {
		return
	}
	// This one is root, as manifests/README.md says.
	spec.InitContainers = slices.DeleteFunc(spec.InitContainers, func(c corev1.Container) bool { return c.Name == "handover-folder" })
	spec.ServiceAccountName, spec.RestartPolicy = "", ""
	pod := corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "my-control-plane"}, Spec: spec}
	text := must(json.Marshal(pod))(p.t)
	_, err := p.try(string(text), "create", "--dry-run=server", "--validate=strict", "-f", "-")
	if err == nil {
		return
	}
	_, complaints, found := strings.Cut(strings.TrimSpace(err.Error()), `violates PodSecurity "restricted:latest": `)
	for _, complaint := range strings.Split(complaints, "), ") {
		if !found || !spec.HostNetwork || !ofTheHost.MatchString(complaint) {
			p.t.Errorf("%s: %v", w.Metadata.Name, err)
			return
		}
	}
}

// kindsOfOthers are modules, in the versions whose types manifests/check decodes
// into, and the definitions in them that kustomizations use.
var kindsOfOthers = map[string]string{
	"sigs.k8s.io/gateway-api":  "config/crd/standard/gateway.networking.k8s.io_tlsroutes.yaml",
	"github.com/openshift/api": "route/v1/zz_generated.crd-manifests/routes.crd.yaml",
}

// define gives the API the kinds of others.
func (p *controlPlane) define() {
	p.t.Helper()
	for path, file := range kindsOfOthers {
		out := must(exec.Command("go", "mod", "download", "-C", filepath.Join(manifests, "check"), "-json", path).Output())(p.t)
		var module struct{ Dir string }
		testutil.NoError(p.t, json.Unmarshal(out, &module))
		p.do("apply", "--server-side", "-f", filepath.Join(module.Dir, file))
	}
	p.do("wait", "crd", "--all", "--for=condition=Established", "--timeout=2m")
}
