package kubeapi

import (
	"context"
	"io"
	"net/http"
)

// NewSigningKeys returns a client for config, which it does not modify. It uses no network.
// The client returns, as a JSON Web Key Set, the public keys of service accounts' tokens, which
// the API publishes to users with the cluster role
// system:service-account-issuer-discovery. It blocks until the API has answered or ctx ends, and
// may be called from any goroutine.
func NewSigningKeys(config *Config) (func(context.Context) ([]byte, error), error) {
	a, err := newAPI(config)
	return func(ctx context.Context) ([]byte, error) {
		resp, err := a.send(ctx, request{method: http.MethodGet, path: "/openid/v1/jwks", accept: "application/jwk-set+json, */*"})
		if err != nil {
			return nil, err
		}
		defer resp.Body.Close()
		return io.ReadAll(&answer{resp.Body, maxObject, maxObject})
	}, err
}
