package kubeapi

import (
	"context"
	"io"
	"net/http"
)

// SigningKeys reads the public keys of service accounts' tokens, which the API
// publishes to users with the cluster role
// system:service-account-issuer-discovery. It may be used from any goroutine.
type SigningKeys struct{ api *api }

// NewSigningKeys returns a client for config, which it does not modify. It uses
// no network.
func NewSigningKeys(config *Config) (SigningKeys, error) {
	a, err := newAPI(config)
	return SigningKeys{a}, err
}

// Get returns the keys as a JSON Web Key Set. It blocks until the API has
// answered or ctx ends.
func (k SigningKeys) Get(ctx context.Context) ([]byte, error) {
	resp, err := k.api.send(ctx, request{method: http.MethodGet, path: "/openid/v1/jwks", accept: "application/jwk-set+json, */*"})
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(&answer{resp.Body, maxObject, maxObject})
}
