package kubeapi

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// Lease says that its holder is there (k8s.io/api/coordination/v1).
type Lease struct {
	Meta

	Spec LeaseSpec `json:"spec,omitzero"`
}

// LeaseSpec says who holds a lease, and until when.
type LeaseSpec struct {
	HolderIdentity       *string           `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds *int32            `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          *metav1.MicroTime `json:"acquireTime,omitempty"`
	RenewTime            *metav1.MicroTime `json:"renewTime,omitempty"`
	LeaseTransitions     *int32            `json:"leaseTransitions,omitempty"`
	Strategy             *string           `json:"strategy,omitempty"`
	PreferredHolder      *string           `json:"preferredHolder,omitempty"`
}

// NewLeases returns a client of the Leases of a namespace.
func NewLeases(config *rest.Config, namespace string) (Objects[*Lease], error) {
	group := schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1"}
	return newObjects[*Lease](config, namespace, kind{group, "Lease", "leases"})
}
