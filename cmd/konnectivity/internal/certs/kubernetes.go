package certs

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"konnectivity/internal/pki"
)

// The files of `konnectivity certs --kubernetes`. Both hold private keys.
const (
	controlPlaneFile = "kubernetes-control-plane.yaml"
	dataPlaneFile    = "kubernetes-data-plane.yaml"
)

// agentNamespace is where HyperShift runs the data plane's agents.
const agentNamespace = "kube-system"

// kubernetesFiles are what `kubectl apply -f` wants: for the control plane
// all certificates, for the data plane those of the agent. The names are those
// HyperShift mounts (openshift/hypershift, control-plane-operator manifests).
func kubernetesFiles(dir, namespace string, ca *pki.CA, files []certificate) ([]file, error) {
	control := []any{signerSecret(namespace, ca)}
	for _, f := range files {
		control = append(control, tlsSecret(namespace, ca, f))
	}
	return objectsFiles(dir, map[string][]any{
		controlPlaneFile: append(control, caConfigMap(namespace, ca)),
		dataPlaneFile:    agentObjects(ca, files[len(files)-1]),
	})
}

// agentObjects are for the cluster where agents run.
func agentObjects(ca *pki.CA, agent certificate) []any {
	return []any{tlsSecret(agentNamespace, ca, agent), caConfigMap(agentNamespace, ca)}
}

// objectsFiles are files of objects as YAML documents, by name. Only their owner may read
// them.
func objectsFiles(dir string, objects map[string][]any) ([]file, error) {
	var files []file
	for _, name := range slices.Sorted(maps.Keys(objects)) {
		var all bytes.Buffer
		for _, object := range objects[name] {
			document, err := yaml.Marshal(object)
			if err != nil {
				return nil, fmt.Errorf("encode %s: %w", name, err)
			}
			all.WriteString("---\n")
			all.Write(document)
		}
		files = append(files, file{filepath.Join(dir, name), all.Bytes(), pki.WriteKey})
	}
	return files, nil
}

// signerSecret is the CA with its key.
func signerSecret(namespace string, ca *pki.CA) *corev1.Secret {
	s := secret(namespace, "signer", corev1.SecretTypeOpaque)
	s.Data = map[string][]byte{"ca.crt": ca.CertPEM, "ca.key": ca.KeyPEM}
	return s
}

// tlsSecret is a certificate with its key, and the CA beside it, so that one
// volume is enough for a pod.
func tlsSecret(namespace string, ca *pki.CA, f certificate) *corev1.Secret {
	s := secret(namespace, f.name, corev1.SecretTypeTLS)
	s.Data = map[string][]byte{
		corev1.TLSCertKey: f.pair.CertPEM, corev1.TLSPrivateKeyKey: f.pair.KeyPEM, "ca.crt": ca.CertPEM,
	}
	return s
}

// secret is an empty Secret konnectivity-NAME.
func secret(namespace, name string, kind corev1.SecretType) *corev1.Secret {
	return &corev1.Secret{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Secret"},
		ObjectMeta: metav1.ObjectMeta{Name: "konnectivity-" + name, Namespace: namespace},
		Type:       kind,
	}
}

// caConfigMap is the CA without its key.
func caConfigMap(namespace string, ca *pki.CA) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: metav1.ObjectMeta{Name: "konnectivity-ca-bundle", Namespace: namespace},
		Data:       map[string]string{"ca.crt": string(ca.CertPEM)},
	}
}
