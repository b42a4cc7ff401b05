package kubeapi

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// TokenReview asks whose a token is (k8s.io/api/authentication/v1).
type TokenReview struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   TokenReviewSpec   `json:"spec"`
	Status TokenReviewStatus `json:"status,omitzero"`
}

// TokenReviewSpec is the question. The token is a secret.
type TokenReviewSpec struct {
	Token     string   `json:"token,omitempty"`
	Audiences []string `json:"audiences,omitempty"` // one of which it is to be for
}

// TokenReviewStatus is the answer.
type TokenReviewStatus struct {
	Authenticated bool     `json:"authenticated,omitempty"`
	User          UserInfo `json:"user,omitzero"`
	Audiences     []string `json:"audiences,omitempty"` // of those that were asked for
	Error         string   `json:"error,omitempty"`
}

// UserInfo is the holder of a token.
type UserInfo struct {
	Username string `json:"username,omitempty"`
}

// DeepCopyObject implements runtime.Object.
func (r *TokenReview) DeepCopyObject() runtime.Object { return copied(r) }

// TokenReviews is a client of TokenReviews; NewTokenReviews makes one. It may be used from
// any goroutine.
type TokenReviews struct {
	objects Objects[*TokenReview]
}

// NewTokenReviews returns a client for config, which it does not modify. It uses no network.
func NewTokenReviews(config *rest.Config) (TokenReviews, error) {
	group := schema.GroupVersion{Group: "authentication.k8s.io", Version: "v1"}
	objects, err := newObjects(config, "", kind{group, "TokenReview", "tokenreviews"}, &TokenReview{})
	return TokenReviews{objects}, err
}

// Create lets the API review a token and returns the verdict. It blocks until the API has
// answered or ctx ends.
func (t TokenReviews) Create(ctx context.Context, review *TokenReview, opts metav1.CreateOptions) (*TokenReview, error) {
	out := &TokenReview{}
	return out, t.objects.to(t.objects.api.Post(), &opts).Body(review).Do(ctx).Into(out)
}

// CloseIdle closes connections that no call is using.
func (t TokenReviews) CloseIdle() { t.objects.CloseIdle() }
