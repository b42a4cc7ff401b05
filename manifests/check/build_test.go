package check

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	route "github.com/openshift/api/route/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gateway "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"

	"konnectivity/internal/testutil"
)

// manifests is the folder under test.
const manifests = ".."

// staticPod stands for what kubeadm makes of the patches in server/static-pod,
// sharedPod if that of shared-socket is among them.
const (
	byKubeadm = "check/testdata/"
	staticPod = byKubeadm + "static-pod"
	sharedPod = byKubeadm + "static-pod-shared"
)

// besideAPI are the sidecars that kube-apiserver uses by a socket: in a Deployment
// of its own, and in what kubeadm makes of the patches in sidecars/static-pod.
var besideAPI = []string{"sidecars/examples/kube-apiserver", byKubeadm + "static-pod-sidecar"}

// socketClient runs nothing of ours: it uses the socket of sharedPod.
const socketClient = "sidecars/examples/csi-controller-socket"

// hostedPeers is the hosted server whose servers forward to one another.
const hostedPeers = "server/hosted-peers"

// base is not for use without a component.
const base = "agent/base"

// object is one that a kustomization makes.
type object struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	value any
}

// kinds are the types that objects must decode into, without a field left over.
var kinds = map[string]func() any{
	"v1/ConfigMap":                                    func() any { return new(corev1.ConfigMap) },
	"v1/Pod":                                          func() any { return new(corev1.Pod) },
	"v1/Service":                                      func() any { return new(corev1.Service) },
	"v1/ServiceAccount":                               func() any { return new(corev1.ServiceAccount) },
	"apps/v1/DaemonSet":                               func() any { return new(appsv1.DaemonSet) },
	"apps/v1/Deployment":                              func() any { return new(appsv1.Deployment) },
	"autoscaling/v2/HorizontalPodAutoscaler":          func() any { return new(autoscalingv2.HorizontalPodAutoscaler) },
	"batch/v1/Job":                                    func() any { return new(batchv1.Job) },
	"policy/v1/PodDisruptionBudget":                   func() any { return new(policyv1.PodDisruptionBudget) },
	"networking.k8s.io/v1/NetworkPolicy":              func() any { return new(networkingv1.NetworkPolicy) },
	"rbac.authorization.k8s.io/v1/Role":               func() any { return new(rbacv1.Role) },
	"rbac.authorization.k8s.io/v1/RoleBinding":        func() any { return new(rbacv1.RoleBinding) },
	"rbac.authorization.k8s.io/v1/ClusterRole":        func() any { return new(rbacv1.ClusterRole) },
	"rbac.authorization.k8s.io/v1/ClusterRoleBinding": func() any { return new(rbacv1.ClusterRoleBinding) },
	"cert-manager.io/v1/Certificate":                  func() any { return new(certmanager.Certificate) },
	"cert-manager.io/v1/Issuer":                       func() any { return new(certmanager.Issuer) },
	"gateway.networking.k8s.io/v1/TLSRoute":           func() any { return new(gateway.TLSRoute) },
	"route.openshift.io/v1/Route":                     func() any { return new(route.Route) },
	"monitoring.coreos.com/v1/PodMonitor":             func() any { return new(monitoring.PodMonitor) },
	"monitoring.coreos.com/v1/ServiceMonitor":         func() any { return new(monitoring.ServiceMonitor) },
	"monitoring.coreos.com/v1/PrometheusRule":         func() any { return new(monitoring.PrometheusRule) },
}

// folders are all kustomizations, the static pod's stand-in included.
func folders(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(manifests, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.Name() != "kustomization.yaml" {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		folder, err := filepath.Rel(manifests, filepath.Dir(path))
		if !bytes.Contains(data, []byte("kind: Component")) && folder != base {
			all = append(all, folder)
		}
		return err
	})
	testutil.Requires(t, err == nil && len(all) >= 15, "kustomizations found: %v, %v", all, err)
	return all
}

// kustomize is what `kubectl kustomize` prints of the kustomization at path, by object.
func kustomize(t *testing.T, path string) (texts []string) {
	t.Helper()
	options := krusty.MakeDefaultOptions()
	if strings.HasPrefix(path, filepath.Join(manifests, byKubeadm)) {
		options.LoadRestrictions = types.LoadRestrictionsNone // kubeadm has none
	}
	resources, err := krusty.MakeKustomizer(options).Run(filesys.MakeFsOnDisk(), path)
	testutil.Requires(t, err == nil, "kustomize %s: %v", path, err)
	for _, r := range resources.Resources() {
		texts = append(texts, string(testutil.Must(r.AsYAML())(t)))
	}
	return texts
}

// build is the same of a folder of the manifests, decoded.
func build(t *testing.T, folder string) (objects []object) {
	t.Helper()
	for _, text := range kustomize(t, filepath.Join(manifests, folder)) {
		objects = append(objects, decode(t, folder, []byte(text)))
	}
	return objects
}

// decode fails on fields that the type does not have.
func decode(t *testing.T, folder string, text []byte) object {
	t.Helper()
	var header struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
	}
	if err := yaml.Unmarshal(text, &header); err != nil {
		t.Fatalf("%s: %v", folder, err)
	}
	kind := header.APIVersion + "/" + header.Kind
	make, ok := kinds[kind]
	testutil.Requires(t, ok, "%s has a %s, whose type is not known here", folder, kind)
	o := object{TypeMeta: header.TypeMeta, ObjectMeta: header.ObjectMeta, value: make()}
	if err := strict(text, o.value); err != nil {
		t.Errorf("%s: %s %s: %v", folder, kind, header.Name, err)
	}
	return o
}

// strict decodes as the API does: names of fields must have the right case, and
// none may be unknown or twice.
func strict(text []byte, into any) error {
	data, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		return err
	}
	faults, err := json.UnmarshalStrict(data, into)
	return errors.Join(append(faults, err)...)
}

// each returns the objects of one type.
func each[T any](objects []object) (found []*T) {
	for _, o := range objects {
		if v, ok := o.value.(*T); ok {
			found = append(found, v)
		}
	}
	return found
}

// pod is a pod template, whatever it is in.
type pod struct {
	folder, name, namespace string
	labels                  map[string]string
	spec                    corev1.PodSpec
	objects                 []object // all of the kustomization
}

// pods are those of one kustomization.
func pods(folder string, objects []object) (found []pod) {
	add := func(m metav1.ObjectMeta, labels map[string]string, spec corev1.PodSpec) {
		found = append(found, pod{folder, m.Name, m.Namespace, labels, spec, objects})
	}
	for _, o := range objects {
		switch v := o.value.(type) {
		case *corev1.Pod:
			add(v.ObjectMeta, v.Labels, v.Spec)
		case *appsv1.DaemonSet:
			add(v.ObjectMeta, v.Spec.Template.Labels, v.Spec.Template.Spec)
		case *appsv1.Deployment:
			add(v.ObjectMeta, v.Spec.Template.Labels, v.Spec.Template.Spec)
		}
	}
	return found
}

// ours are the containers that run a program of the suite for as long as the pod
// lives.
func (p pod) ours() (found []corev1.Container) {
	for _, c := range append(p.beside(), p.spec.Containers...) {
		if c.Image == "konnectivity:latest" {
			found = append(found, c)
		}
	}
	return found
}

// beside are the init containers that go on while the others run.
func (p pod) beside() (found []corev1.Container) {
	for _, c := range p.spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			found = append(found, c)
		}
	}
	return found
}

// allPods are the pods of all kustomizations that run something of ours.
func allPods(t *testing.T) (all []pod) {
	t.Helper()
	for _, folder := range folders(t) {
		if folder != socketClient {
			all = append(all, pods(folder, build(t, folder))...)
		}
	}
	return all
}
