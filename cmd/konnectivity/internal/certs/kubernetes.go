package certs

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"sigs.k8s.io/yaml"

	"konnectivity/internal/kubeapi"
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
	control := []any{secret(namespace, "signer", kubeapi.SecretOpaque, map[string][]byte{"ca.crt": ca.CertPEM, "ca.key": ca.KeyPEM})}
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

// tlsSecret is a certificate with its key, and the CA beside it, so that one
// volume is enough for a pod.
func tlsSecret(namespace string, ca *pki.CA, f certificate) *kubeapi.Secret {
	return secret(namespace, f.name, kubeapi.SecretTLS, map[string][]byte{
		kubeapi.TLSCert: f.pair.CertPEM, kubeapi.TLSKey: f.pair.KeyPEM, "ca.crt": ca.CertPEM,
	})
}

// secret is the Secret konnectivity-NAME.
func secret(namespace, name, kind string, data map[string][]byte) *kubeapi.Secret {
	return &kubeapi.Secret{Meta: meta("Secret", namespace, "konnectivity-"+name), Type: kind, Data: data}
}

func meta(kind, namespace, name string) (m kubeapi.Meta) {
	m.APIVersion, m.Kind = "v1", kind
	m.Namespace, m.Name = namespace, name
	return m
}

// configMap has the fields of a ConfigMap that are written (k8s.io/api/core/v1).
type configMap struct {
	kubeapi.Meta

	Data map[string]string `json:"data"`
}

// caConfigMap is the CA without its key.
func caConfigMap(namespace string, ca *pki.CA) *configMap {
	return &configMap{
		Meta: meta("ConfigMap", namespace, "konnectivity-ca-bundle"),
		Data: map[string]string{"ca.crt": string(ca.CertPEM)},
	}
}
