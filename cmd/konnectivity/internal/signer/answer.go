package signer

import (
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/pki"
)

const (
	// Annotation is a pod's, in userAnnotations of its podCertificate volume. Its value
	// says which id the certificate has: OfNode, which is the default, or OfPod.
	Annotation = "konnectivity.internal/agent-id"
	OfNode     = "node"
	OfPod      = "pod"

	// Least is the shortest life that kube-apiserver takes.
	Least = time.Hour
)

// Reasons of a denial. The first two are the API's own.
const (
	badKey        = "UnsupportedKeyType"
	badAnnotation = "InvalidUnverifiedUserAnnotations"
	notAnAgent    = "NotAnAgent"
)

// Terms are what certificates are issued by.
type Terms struct {
	ServiceAccount string        // of agents, in the namespace of the requests
	TrustDomain    string        // of the role in their certificates
	Lifetime       time.Duration // at most; at least Least
}

// Answer is the status of a request that is pending: Issued with a certificate, or Denied
// with a reason that names what the pod's author has to change. An error is the signer's own
// trouble, and the request stays pending.
//
// A certificate has one name, its agent's id, so that it stays the same agent's when a node's
// pod is replaced: of the node, or, for agents of which a node may have several, of the pod.
func (t Terms) Answer(r *kubeapi.PodCertificateRequest, ca *pki.CA) (kubeapi.PodCertificateRequestStatus, error) {
	if r.Spec.ServiceAccountName != t.ServiceAccount {
		return denied(notAnAgent, "certificates of agents are for pods with the service account %s", t.ServiceAccount), nil
	}
	id, err := idOf(r.Spec)
	if err != nil {
		return denied(badAnnotation, "%v", err), nil
	}
	csr, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err == nil {
		err = csr.CheckSignature()
	}
	if err != nil {
		return denied(badKey, "the request's public key cannot be used: %v; ECDSAP256 can", err), nil
	}
	lifetime := min(t.Lifetime, time.Duration(r.Spec.MaxExpirationSeconds)*time.Second)
	if left := time.Until(ca.Certificate().NotAfter); left < lifetime {
		return kubeapi.PodCertificateRequestStatus{}, fmt.Errorf("the CA expires at %s, before a certificate of %s would: renew the CA", ca.Certificate().NotAfter.UTC().Format(time.DateTime), lifetime)
	}
	chain, err := ca.Sign(csr.PublicKey, pki.Leaf{
		CommonName: id, DNS: []string{id}, Client: true,
		Holder: pki.Holder{Role: pki.RoleAgent, TrustDomain: t.TrustDomain}, Lifetime: lifetime - pki.ClockSkew,
	})
	if err != nil {
		return kubeapi.PodCertificateRequestStatus{}, err
	}
	return issued(chain)
}

// idOf is the id that a pod's agent may have.
func idOf(spec kubeapi.PodCertificateRequestSpec) (string, error) {
	for _, key := range slices.Sorted(maps.Keys(spec.UnverifiedUserAnnotations)) {
		if key != Annotation {
			return "", fmt.Errorf("the annotation %.200q means nothing to this signer: want %s or none", key, Annotation)
		}
	}
	switch of := spec.UnverifiedUserAnnotations[Annotation]; of {
	case OfNode, "":
		return spec.NodeName, nil
	case OfPod:
		return spec.PodName, nil
	default:
		return "", fmt.Errorf("the annotation %s is %.200q: want %s or %s", Annotation, of, OfNode, OfPod)
	}
}

// issued is the status with a chain, which kubelet is to replace after half of its life, and
// up to a sixth later by chance: agents that came at once do not all come back at once.
func issued(chain []byte) (kubeapi.PodCertificateRequestStatus, error) {
	block, _ := pem.Decode(chain)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return kubeapi.PodCertificateRequestStatus{}, fmt.Errorf("read back the certificate: %w", err)
	}
	life := cert.NotAfter.Sub(cert.NotBefore)
	refresh := cert.NotBefore.Add(life/2 + rand.N(life/6)).Truncate(time.Second)
	return kubeapi.PodCertificateRequestStatus{
		Conditions:       condition("Issued", "Signed", "a certificate of "+pki.Name(cert)),
		CertificateChain: string(chain),
		NotBefore:        &cert.NotBefore,
		BeginRefreshAt:   &refresh,
		NotAfter:         &cert.NotAfter,
	}, nil
}

func denied(reason, format string, args ...any) kubeapi.PodCertificateRequestStatus {
	return kubeapi.PodCertificateRequestStatus{Conditions: condition("Denied", reason, fmt.Sprintf(format, args...))}
}

func condition(kind, reason, message string) []kubeapi.Condition {
	return []kubeapi.Condition{{Type: kind, Status: "True", Reason: reason, Message: message, LastTransitionTime: time.Now().UTC().Truncate(time.Second)}}
}
