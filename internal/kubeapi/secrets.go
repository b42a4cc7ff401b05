package kubeapi

// Types of Secrets, and the keys of one with a certificate.
const (
	SecretOpaque = "Opaque"
	SecretTLS    = "kubernetes.io/tls"

	TLSCert = "tls.crt"
	TLSKey  = "tls.key"
)

// Secret has the fields that are read or written (k8s.io/api/core/v1).
type Secret struct {
	Meta

	Type       string            `json:"type,omitempty"`
	Data       map[string][]byte `json:"data,omitempty"`
	StringData map[string]string `json:"stringData,omitempty"` // it is written, and never read
}

// NewSecrets returns a client of the Secrets of a namespace.
func NewSecrets(config *Config, namespace string) (Objects[*Secret], error) {
	return newObjects[*Secret](config, namespace, kind{"", "Secret", "secrets"})
}

// SecretMirror is a Mirror of Secrets that returns their data.
type SecretMirror struct{ *Mirror[*Secret] }

// Get is what a Secret has, which must not be modified, and a version that changes with it,
// and tells it from an earlier one of the same name; "": there is no such Secret.
func (m SecretMirror) Get(name string) (data map[string][]byte, version string) {
	s, found := m.Mirror.Get(name)
	if !found {
		return nil, ""
	}
	return s.Data, s.UID + "/" + s.ResourceVersion
}
