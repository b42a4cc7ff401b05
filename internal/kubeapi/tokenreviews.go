package kubeapi

import (
	"context"
)

// TokenReview asks whose a token is (k8s.io/api/authentication/v1).
type TokenReview struct {
	Meta

	Spec   TokenReviewSpec   `json:"spec"`
	Status TokenReviewStatus `json:"status,omitzero"`
}

// TokenReviewSpec is the question. The token is a secret.
type TokenReviewSpec struct {
	Token     string   `json:"token,omitempty"`
	Audiences []string `json:"audiences,omitempty"` // that are accepted
}

// TokenReviewStatus is the answer.
type TokenReviewStatus struct {
	Authenticated bool     `json:"authenticated,omitempty"`
	User          UserInfo `json:"user,omitzero"`
	Audiences     []string `json:"audiences,omitempty"` // the token's, of those in the question
	Error         string   `json:"error,omitempty"`
}

// UserInfo is the holder of a token.
type UserInfo struct {
	Username string `json:"username,omitempty"`
}

// TokenReviews is a client of TokenReviews; NewTokenReviews makes one. It may be used from
// any goroutine.
type TokenReviews struct {
	objects Objects[*TokenReview]
}

// retries is how often a token is asked about again where the API says when: client-go's
// default.
const retries = 10

// NewTokenReviews returns a client for config, which it does not modify. It uses no network.
func NewTokenReviews(config *Config) (TokenReviews, error) {
	objects, err := newObjects[*TokenReview](config, "", kind{"authentication.k8s.io", "v1", "TokenReview", "tokenreviews"})
	objects.retries = retries
	return TokenReviews{objects}, err
}

// Create returns the API's answer. It asks again where the API tells it to wait, and blocks
// until there is an answer or ctx ends.
func (t TokenReviews) Create(ctx context.Context, ask TokenReviewSpec) (TokenReviewStatus, error) {
	out, err := t.objects.Create(ctx, &TokenReview{Spec: ask})
	if err != nil {
		return TokenReviewStatus{}, err
	}
	return out.Status, nil
}

// CloseIdle closes connections that no call is using.
func (t TokenReviews) CloseIdle() { t.objects.CloseIdle() }
