// Package kubeapi is client-go's REST client for the few resources that the
// suite uses. client-go's own typed packages link every API group, and its
// generic ones the machinery of fake clients and apply, which costs a small
// process more memory than all its work.
//
// Agents read leases by it; servers write them, have tokens reviewed, and watch
// the Secrets of tenants, each of which may have an API of its own (Access). It
// owns HTTP connections to the API.
package kubeapi

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Leases is a client of the Leases of one namespace; NewLeases makes one. It
// may be used from any goroutine. Every call blocks until the API has answered
// or its context ends; a refusal is an apierrors.APIStatus.
type Leases struct{ resource }

// NewLeases returns a client for config, which it does not modify. It uses no
// network.
func NewLeases(config *rest.Config, namespace string) (Leases, error) {
	r, err := newResource(config, coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme)
	if err != nil {
		return Leases{}, err
	}
	r.name, r.namespace = "leases", namespace
	return Leases{r}, nil
}

// Get reads one lease.
func (l Leases) Get(ctx context.Context, name string, opts metav1.GetOptions) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, l.to(l.api.Get(), &opts).Name(name).Do(ctx).Into(out)
}

// List reads the leases that opts select.
func (l Leases) List(ctx context.Context, opts metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	out := &coordinationv1.LeaseList{}
	return out, l.to(l.api.Get(), &opts).Timeout(bound(opts)).Do(ctx).Into(out)
}

// Watch follows the leases that opts select, until ctx ends or the API ends it,
// at the latest after opts.TimeoutSeconds. The caller must Stop it.
func (l Leases) Watch(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
	opts.Watch = true
	return begin(ctx, l.to(l.api.Get(), &opts).Timeout(bound(opts)))
}

// Create creates a lease and returns it as stored by the API.
func (l Leases) Create(ctx context.Context, lease *coordinationv1.Lease, opts metav1.CreateOptions) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, l.to(l.api.Post(), &opts).Body(lease).Do(ctx).Into(out)
}

// Update writes a lease and returns it as stored by the API.
func (l Leases) Update(ctx context.Context, lease *coordinationv1.Lease, opts metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	out := &coordinationv1.Lease{}
	return out, l.to(l.api.Put(), &opts).Name(lease.Name).Body(lease).Do(ctx).Into(out)
}

// Delete deletes a lease.
func (l Leases) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	return l.to(l.api.Delete(), nil).Name(name).Body(&opts).Do(ctx).Error()
}

// resource is one kind of object, in one namespace or in none.
type resource struct {
	api             *rest.RESTClient
	params          runtime.ParameterCodec
	name, namespace string
}

// newResource returns a REST client for a single API group.
func newResource(config *rest.Config, group schema.GroupVersion, add func(*runtime.Scheme) error) (resource, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return resource{}, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	own := rest.CopyConfig(config)
	own.GroupVersion = &group
	if own.APIPath = "/apis"; group.Group == "" {
		own.APIPath = "/api"
	}
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if own.UserAgent == "" {
		own.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	api, err := rest.RESTClientFor(own)
	if err != nil {
		return resource{}, fmt.Errorf("client of %s: %w", group, err)
	}
	return resource{api: api, params: runtime.NewParameterCodec(scheme)}, nil
}

// to addresses a request to the resource. Without a content type in the config
// it uses protobuf, as client-go's typed clients of these groups do.
func (r resource) to(req *rest.Request, opts runtime.Object) *rest.Request {
	req = req.UseProtobufAsDefault().NamespaceIfScoped(r.namespace, r.namespace != "").Resource(r.name)
	if opts == nil {
		return req
	}
	return req.VersionedParams(opts, r.params)
}

// begin begins a watch. An API that hangs up instead is an error: client-go takes that
// for a watch that has ended.
func begin(ctx context.Context, req *rest.Request) (watch.Interface, error) {
	w, err := req.Watch(ctx)
	if err != nil {
		return nil, err
	}
	if _, began := w.(*watch.StreamWatcher); !began {
		return nil, errors.New("the API hung up")
	}
	return w, nil
}

// CloseIdle closes connections that no call is using.
func (r resource) CloseIdle() { r.api.Client.CloseIdleConnections() }

// bound makes the API end a request when the caller's time is up.
func bound(opts metav1.ListOptions) time.Duration {
	if opts.TimeoutSeconds == nil {
		return 0
	}
	return time.Duration(*opts.TimeoutSeconds) * time.Second
}
