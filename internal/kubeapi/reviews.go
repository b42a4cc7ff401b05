package kubeapi

import "context"

// review is a question to the API, and its answer, in the form of an object.
type review[Spec, Status any] struct {
	Meta

	Spec   Spec   `json:"spec"`
	Status Status `json:"status,omitzero"`
}

// reviews is a client of reviews of one kind. It may be used from any goroutine.
type reviews[Spec, Status any] struct{ Objects[*review[Spec, Status]] }

// Create returns the API's answer. It blocks until then or until ctx ends; TokenReviews ask
// again where the API tells them to wait.
func (r reviews[Spec, Status]) Create(ctx context.Context, ask Spec) (answer Status, err error) {
	out, err := r.Objects.Create(ctx, &review[Spec, Status]{Spec: ask})
	if err == nil {
		answer = out.Status
	}
	return answer, err
}

// TokenReview asks whose a token is (k8s.io/api/authentication/v1). TokenReviews is a client;
// NewTokenReviews makes one.
type (
	TokenReview  = review[TokenReviewSpec, TokenReviewStatus]
	TokenReviews = reviews[TokenReviewSpec, TokenReviewStatus]
)

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

// retries is how often a token is asked about again where the API says when: client-go's
// default.
const retries = 10

// NewTokenReviews returns a client for config, which it does not modify. It uses no network.
func NewTokenReviews(config *Config) (TokenReviews, error) {
	objects, err := newObjects[*TokenReview](config, "", kind{"authentication.k8s.io", "TokenReview", "tokenreviews"})
	objects.retries = retries
	return TokenReviews{objects}, err
}

// SubjectAccessReview asks whether a user may do something to a resource
// (k8s.io/api/authorization/v1). SubjectAccessReviews is a client; NewSubjectAccessReviews
// makes one.
type (
	SubjectAccessReview  = review[SubjectAccessReviewSpec, SubjectAccessReviewStatus]
	SubjectAccessReviews = reviews[SubjectAccessReviewSpec, SubjectAccessReviewStatus]
)

// SubjectAccessReviewSpec is the question.
type SubjectAccessReviewSpec struct {
	User               string             `json:"user,omitempty"`
	Groups             []string           `json:"groups,omitempty"`
	ResourceAttributes ResourceAttributes `json:"resourceAttributes"`
}

// ResourceAttributes are what the user wants to do.
type ResourceAttributes struct {
	Verb        string `json:"verb"`
	Group       string `json:"group"`
	Version     string `json:"version"`
	Resource    string `json:"resource"`
	Subresource string `json:"subresource,omitempty"`
	Namespace   string `json:"namespace,omitempty"`
	Name        string `json:"name,omitempty"`
}

// SubjectAccessReviewStatus is the answer. Denied overrules Allowed.
type SubjectAccessReviewStatus struct {
	Allowed bool `json:"allowed"`
	Denied  bool `json:"denied,omitempty"`
}

// NewSubjectAccessReviews is NewTokenReviews for these. It asks once.
func NewSubjectAccessReviews(config *Config) (SubjectAccessReviews, error) {
	objects, err := newObjects[*SubjectAccessReview](config, "", kind{"authorization.k8s.io", "SubjectAccessReview", "subjectaccessreviews"})
	return SubjectAccessReviews{objects}, err
}
