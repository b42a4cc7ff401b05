package kubeapi

import (
	"context"
	"maps"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Secret is the part of a Secret that is read. The API's own type would link all of
// its core group.
type Secret struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Data map[string][]byte `json:"data"`
}

// SecretList is a page of Secrets.
type SecretList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []Secret `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (s *Secret) DeepCopyObject() runtime.Object {
	out := &Secret{TypeMeta: s.TypeMeta, ObjectMeta: *s.ObjectMeta.DeepCopy(), Data: maps.Clone(s.Data)}
	for key, data := range out.Data {
		out.Data[key] = append([]byte(nil), data...)
	}
	return out
}

// DeepCopyObject implements runtime.Object.
func (l *SecretList) DeepCopyObject() runtime.Object {
	out := &SecretList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy()}
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Secret))
	}
	return out
}

// Secrets is a client of the Secrets of one namespace; NewSecrets makes one. It
// may be used from any goroutine.
type Secrets struct{ resource }

// NewSecrets returns a client for config, which it does not modify. It uses no
// network. It speaks JSON, whatever the config says.
func NewSecrets(config *rest.Config, namespace string) (Secrets, error) {
	asJSON := rest.CopyConfig(config)
	asJSON.ContentType, asJSON.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	group := schema.GroupVersion{Version: "v1"}
	r, err := newResource(asJSON, group, func(scheme *runtime.Scheme) error {
		scheme.AddKnownTypes(group, &Secret{}, &SecretList{})
		return nil
	})
	if err != nil {
		return Secrets{}, err
	}
	r.name, r.namespace = "secrets", namespace
	return Secrets{r}, nil
}

// String is the namespace.
func (s Secrets) String() string { return s.namespace }

// List reads the Secrets that opts select, or a page of them. It asks once, and
// blocks until the API has answered or ctx ends.
func (s Secrets) List(ctx context.Context, opts metav1.ListOptions) (*SecretList, error) {
	out := &SecretList{}
	return out, s.once(opts).Do(ctx).Into(out)
}

// Watch follows the Secrets that opts select, until ctx ends or the API ends it,
// at the latest after opts.TimeoutSeconds. It asks once. The caller must Stop it.
func (s Secrets) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	return begin(ctx, s.once(opts))
}

// once is a request that the client does not repeat by itself.
func (s Secrets) once(opts metav1.ListOptions) *rest.Request {
	return s.to(s.api.Get().MaxRetries(0), &opts).Timeout(bound(opts))
}
