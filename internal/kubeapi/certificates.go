package kubeapi

import "time"

// certificates is the group of both kinds below, which Kubernetes 1.37 has.
const certificates = "certificates.k8s.io"

// PodCertificateRequest is a kubelet's request for a certificate of one pod
// (k8s.io/api/certificates/v1). The API has verified that the pod, its service account and
// its node are as the request says, and that the kubelet has the private key.
type PodCertificateRequest struct {
	Meta

	Spec   PodCertificateRequestSpec   `json:"spec"`
	Status PodCertificateRequestStatus `json:"status,omitzero"`
}

// PodCertificateRequestSpec says who wants a certificate. It never changes.
type PodCertificateRequestSpec struct {
	SignerName           string `json:"signerName"`
	PodName              string `json:"podName"`
	ServiceAccountName   string `json:"serviceAccountName"`
	NodeName             string `json:"nodeName"`
	MaxExpirationSeconds int32  `json:"maxExpirationSeconds"` // 3,600 to 7,862,400
	StubPKCS10Request    []byte `json:"stubPKCS10Request"`    // DER, for its public key alone

	// UnverifiedUserAnnotations are what the pod's author wrote.
	UnverifiedUserAnnotations map[string]string `json:"unverifiedUserAnnotations,omitempty"`
}

// PodCertificateRequestStatus is the signer's answer. It is written once.
type PodCertificateRequestStatus struct {
	Conditions       []Condition `json:"conditions,omitempty"`
	CertificateChain string      `json:"certificateChain,omitempty"` // PEM
	NotBefore        *time.Time  `json:"notBefore,omitempty"`
	BeginRefreshAt   *time.Time  `json:"beginRefreshAt,omitempty"`
	NotAfter         *time.Time  `json:"notAfter,omitempty"`
}

// Condition is how an object is (metav1.Condition).
type Condition struct {
	Type               string    `json:"type"`
	Status             string    `json:"status"` // True, False or Unknown
	Reason             string    `json:"reason"`
	Message            string    `json:"message"`
	LastTransitionTime time.Time `json:"lastTransitionTime"`
}

// ClusterTrustBundle has CA certificates for pods (k8s.io/api/certificates/v1).
type ClusterTrustBundle struct {
	Meta

	Spec ClusterTrustBundleSpec `json:"spec"`
}

// ClusterTrustBundleSpec is what pods are given.
type ClusterTrustBundleSpec struct {
	SignerName  string `json:"signerName,omitempty"`
	TrustBundle string `json:"trustBundle"` // PEM
}

// NewPodCertificateRequests returns a client of the PodCertificateRequests of a namespace.
func NewPodCertificateRequests(config *Config, namespace string) (Objects[*PodCertificateRequest], error) {
	return newObjects[*PodCertificateRequest](config, namespace, kind{certificates, "PodCertificateRequest", "podcertificaterequests"})
}

// NewClusterTrustBundles returns a client of ClusterTrustBundles.
func NewClusterTrustBundles(config *Config) (Objects[*ClusterTrustBundle], error) {
	return newObjects[*ClusterTrustBundle](config, "", kind{certificates, "ClusterTrustBundle", "clustertrustbundles"})
}
