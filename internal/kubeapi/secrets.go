package kubeapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Secret is the part of a Secret that is read.
type Secret struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Data map[string][]byte `json:"data"`
}

// DeepCopyObject implements runtime.Object.
func (s *Secret) DeepCopyObject() runtime.Object { return copied(s) }

// NewSecrets returns a client of the Secrets of a namespace.
func NewSecrets(config *rest.Config, namespace string) (Objects[*Secret], error) {
	return newObjects(config, namespace, kind{schema.GroupVersion{Version: "v1"}, "Secret", "secrets"}, &Secret{})
}

// SecretMirror is a Mirror of Secrets that returns their data.
type SecretMirror struct{ *Mirror[*Secret] }

// Get is what a Secret has, which must not be modified, and a version that changes with it,
// and tells it from an earlier one of the same name; "": there is no such Secret.
func (m SecretMirror) Get(name string) (data map[string][]byte, version string) {
	s, found := m.Mirror.Get(name)
	if !found {
		return nil, ""
	}
	return s.Data, string(s.UID) + "/" + s.ResourceVersion
}
