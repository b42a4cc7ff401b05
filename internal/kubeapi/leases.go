package kubeapi

import "time"

// Lease says that its holder is there (k8s.io/api/coordination/v1).
type Lease struct {
	Meta

	Spec LeaseSpec `json:"spec,omitzero"`
}

// LeaseSpec says who holds a lease, and until when.
type LeaseSpec struct {
	HolderIdentity       *string    `json:"holderIdentity,omitempty"`
	LeaseDurationSeconds *int32     `json:"leaseDurationSeconds,omitempty"`
	AcquireTime          *MicroTime `json:"acquireTime,omitempty"`
	RenewTime            *MicroTime `json:"renewTime,omitempty"`
	LeaseTransitions     *int32     `json:"leaseTransitions,omitempty"`
	Strategy             *string    `json:"strategy,omitempty"`
	PreferredHolder      *string    `json:"preferredHolder,omitempty"`
}

// NewLeases returns a client of the Leases of a namespace.
func NewLeases(config *Config, namespace string) (Objects[*Lease], error) {
	return newObjects[*Lease](config, namespace, kind{"coordination.k8s.io", "Lease", "leases"})
}

// MicroTime is a point in time in the one form that the API accepts (metav1.MicroTime).
type MicroTime struct{ time.Time }

// MarshalJSON implements json.Marshaler.
func (t MicroTime) MarshalJSON() ([]byte, error) {
	return []byte(t.UTC().Format(`"2006-01-02T15:04:05.000000Z07:00"`)), nil
}
