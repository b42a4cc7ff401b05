package kubeapi

import (
	"context"
)

// SubjectAccessReview asks whether a user may do something to a resource
// (k8s.io/api/authorization/v1).
type SubjectAccessReview struct {
	Meta

	Spec   SubjectAccessReviewSpec   `json:"spec"`
	Status SubjectAccessReviewStatus `json:"status,omitzero"`
}

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

// SubjectAccessReviews is a client of SubjectAccessReviews; NewSubjectAccessReviews makes
// one. It may be used from any goroutine.
type SubjectAccessReviews struct {
	objects Objects[*SubjectAccessReview]
}

// NewSubjectAccessReviews returns a client for config, which it does not modify. It uses no
// network.
func NewSubjectAccessReviews(config *Config) (SubjectAccessReviews, error) {
	objects, err := newObjects[*SubjectAccessReview](config, "", kind{"authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews"})
	return SubjectAccessReviews{objects}, err
}

// Create returns the API's answer. It asks once, and blocks until then or until ctx ends.
func (s SubjectAccessReviews) Create(ctx context.Context, ask SubjectAccessReviewSpec) (SubjectAccessReviewStatus, error) {
	out, err := s.objects.Create(ctx, &SubjectAccessReview{Spec: ask})
	if err != nil {
		return SubjectAccessReviewStatus{}, err
	}
	return out.Status, nil
}
