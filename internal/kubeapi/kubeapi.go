// Package kubeapi makes client-go clients of the two resources that the suite
// uses. client-go's own typed packages do the same but link every API group
// there is, which costs a small process more memory than all its work.
package kubeapi

import (
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// Leases is a client of the Leases of one namespace.
type Leases = *gentype.ClientWithList[*coordinationv1.Lease, *coordinationv1.LeaseList]

// TokenReviews is a client of TokenReviews.
type TokenReviews = *gentype.Client[*authenticationv1.TokenReview]

// NewLeases makes a client for config, which is left as it is. It touches no
// network.
func NewLeases(config *rest.Config, namespace string) (Leases, error) {
	api, params, err := newClient(config, coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme)
	if err != nil {
		return nil, err
	}
	return gentype.NewClientWithList(
		"leases", api, params, namespace,
		func() *coordinationv1.Lease { return &coordinationv1.Lease{} },
		func() *coordinationv1.LeaseList { return &coordinationv1.LeaseList{} },
		gentype.PrefersProtobuf[*coordinationv1.Lease](),
	), nil
}

// NewTokenReviews makes a client for config, which is left as it is. It
// touches no network.
func NewTokenReviews(config *rest.Config) (TokenReviews, error) {
	api, params, err := newClient(config, authenticationv1.SchemeGroupVersion, authenticationv1.AddToScheme)
	if err != nil {
		return nil, err
	}
	return gentype.NewClient(
		"tokenreviews", api, params, "",
		func() *authenticationv1.TokenReview { return &authenticationv1.TokenReview{} },
		gentype.PrefersProtobuf[*authenticationv1.TokenReview](),
	), nil
}

// newClient makes a REST client that knows one group and nothing else.
func newClient(config *rest.Config, group schema.GroupVersion, add func(*runtime.Scheme) error) (rest.Interface, runtime.ParameterCodec, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, nil, err
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	own := rest.CopyConfig(config)
	own.GroupVersion = &group
	own.APIPath = "/apis"
	own.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	if own.UserAgent == "" {
		own.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	api, err := rest.RESTClientFor(own)
	if err != nil {
		return nil, nil, fmt.Errorf("client of %s: %w", group, err)
	}
	return api, runtime.NewParameterCodec(scheme), nil
}
