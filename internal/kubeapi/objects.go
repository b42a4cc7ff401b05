package kubeapi

import (
	"context"
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Object is a pointer to a type of ours that has the part of an API object that is used.
// The API's own types would link all of their groups.
type Object interface {
	runtime.Object
	metav1.Object
}

// List is a page of objects.
type List[T Object] struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []T `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (l *List[T]) DeepCopyObject() runtime.Object { return copied(l) }

// copied is a deep copy. Nothing asks for one but the interface.
func copied[T any](in *T) *T {
	out := new(T)
	if data, err := json.Marshal(in); err != nil || json.Unmarshal(data, out) != nil {
		panic("an object that came as JSON is none")
	}
	return out
}

// Objects is a client of one kind of object, in one namespace or in none. It may be used
// from any goroutine. It asks once; every call blocks until the API has answered or its
// context ends; a refusal is an apierrors.APIStatus.
type Objects[T Object] struct{ resource }

// kind is a kind of object: its group, the name of its type, and its name in paths.
type kind struct {
	group      schema.GroupVersion
	name, path string
}

// newObjects returns a client for config, which it does not modify, and uses no network.
// It speaks JSON, whatever the config says: protobuf would need the API's own types. one is
// an object of the kind.
func newObjects[T Object](config *rest.Config, namespace string, k kind, one T) (Objects[T], error) {
	asJSON := rest.CopyConfig(config)
	asJSON.ContentType, asJSON.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	r, err := newResource(asJSON, k.group, func(scheme *runtime.Scheme) error {
		scheme.AddKnownTypeWithName(k.group.WithKind(k.name), one)
		scheme.AddKnownTypeWithName(k.group.WithKind(k.name+"List"), &List[T]{})
		metav1.AddToGroupVersion(scheme, k.group) // options, and events of watches
		return nil
	})
	if err != nil {
		return Objects[T]{}, err
	}
	r.name, r.namespace = k.path, namespace
	return Objects[T]{r}, nil
}

// String is the namespace.
func (o Objects[T]) String() string { return o.namespace }

// List reads the objects that opts select, or a page of them.
func (o Objects[T]) List(ctx context.Context, opts metav1.ListOptions) (*List[T], error) {
	out := &List[T]{}
	return out, o.to(o.api.Get().MaxRetries(0), &opts).Timeout(bound(opts)).Do(ctx).Into(out)
}

// Watch follows the objects that opts select, until ctx ends or the API ends it, at the
// latest after opts.TimeoutSeconds. The caller must Stop it.
func (o Objects[T]) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	return begin(ctx, o.to(o.api.Get().MaxRetries(0), &opts).Timeout(bound(opts)))
}

// Get reads one object into out.
func (o Objects[T]) Get(ctx context.Context, name string, out T) error {
	return o.to(o.api.Get().MaxRetries(0), nil).Name(name).Do(ctx).Into(out)
}

// Create creates an object.
func (o Objects[T]) Create(ctx context.Context, object T) error {
	return o.create(ctx, object).Error()
}

func (o Objects[T]) create(ctx context.Context, object T) rest.Result {
	return o.to(o.api.Post().MaxRetries(0), nil).Body(object).Do(ctx)
}

// Update writes an object, or, with "status" as its part, that part of it alone.
func (o Objects[T]) Update(ctx context.Context, object T, part ...string) error {
	return o.to(o.api.Put().MaxRetries(0), nil).Name(object.GetName()).SubResource(part...).Body(object).Do(ctx).Error()
}
