package kubeapi

import (
	"net/http"
	"net/url"

	"k8s.io/client-go/transport"
)

// ServicesPage is how many Services a page should have. maxServicesPage bounds it, in bytes:
// 64 KiB each are far more than real ones have.
const (
	ServicesPage    = 500
	maxServicesPage = ServicesPage * 64 << 10
)

// Service has the fields that are read (k8s.io/api/core/v1).
type Service struct {
	TypeMeta
	Identity `json:"metadata"`
	Spec     ServiceSpec `json:"spec"`
}

// ServiceSpec has a Service's addresses. A headless one has "None".
type ServiceSpec struct {
	ClusterIPs []string `json:"clusterIPs"`
}

// NewServices returns a client of the Services of all namespaces, over connections that are
// the caller's: trip has Access.TLS, or none. Of the rest, a token wins over a password.
// Redirects are not followed.
func (a Access) NewServices(trip http.RoundTripper) (Objects[*Service], error) {
	base, err := url.Parse(a.Server)
	if err != nil {
		return Objects[*Service]{}, err
	}
	with := transport.Config{UserAgent: userAgent(), BearerToken: a.Token}
	if a.Token == "" {
		with.Username, with.Password = a.Username, a.Password
	}
	if trip, err = transport.HTTPWrappersForConfig(&with, trip); err != nil {
		return Objects[*Service]{}, err
	}
	client := &http.Client{Transport: trip, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return Objects[*Service]{api: &api{client, base, nil}, kind: kind{"", "Service", "services"}, page: maxServicesPage}, nil
}

// In is a client of the same objects in one namespace.
func (o Objects[T]) In(namespace string) Objects[T] {
	o.namespace = namespace
	return o
}
