package kubeapi

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// SigningKeys reads the public keys of service accounts' tokens, which the API
// publishes to users with the cluster role
// system:service-account-issuer-discovery. It may be used from any goroutine.
type SigningKeys struct{ api *rest.RESTClient }

// NewSigningKeys returns a client for config, which it does not modify. It uses
// no network.
func NewSigningKeys(config *rest.Config) (SigningKeys, error) {
	own := rest.CopyConfig(config)
	own.GroupVersion = &schema.GroupVersion{}
	own.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	if own.UserAgent == "" {
		own.UserAgent = rest.DefaultKubernetesUserAgent()
	}
	api, err := rest.UnversionedRESTClientFor(own)
	if err != nil {
		return SigningKeys{}, fmt.Errorf("client of the API's signing keys: %w", err)
	}
	return SigningKeys{api}, nil
}

// Get returns the keys as a JSON Web Key Set. It blocks until the API has
// answered or ctx ends.
func (k SigningKeys) Get(ctx context.Context) ([]byte, error) {
	return k.api.Get().AbsPath("/openid/v1/jwks").SetHeader("Accept", "application/jwk-set+json, */*").Do(ctx).Raw()
}
