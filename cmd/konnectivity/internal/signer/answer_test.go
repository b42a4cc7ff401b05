package signer

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	"konnectivity/internal/kubeapi"
	"konnectivity/internal/pki"
	"konnectivity/internal/testutil"
)

var terms = Terms{ServiceAccount: "konnectivity-agent", TrustDomain: "one.example", Lifetime: 24 * time.Hour}

// asked is a request as kubelet makes it: its CSR is empty.
func asked(t *testing.T, key crypto.Signer) *kubeapi.PodCertificateRequest {
	t.Helper()
	csr := testutil.Must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key))(t)
	return &kubeapi.PodCertificateRequest{
		Meta: kubeapi.Meta{Metadata: kubeapi.Metadata{Identity: kubeapi.Identity{Name: "r", Namespace: "kube-system", ResourceVersion: "1"}}},
		Spec: kubeapi.PodCertificateRequestSpec{
			SignerName: "konnectivity.internal/agent", PodName: "konnectivity-agent-x", ServiceAccountName: "konnectivity-agent",
			NodeName: "node-1.example", MaxExpirationSeconds: 86400, StubPKCS10Request: csr,
		},
	}
}

func p256(t *testing.T) crypto.Signer {
	t.Helper()
	return testutil.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

// checkAPI holds a status to what kube-apiserver demands of one
// (ValidatePodCertificateRequestStatusUpdate in pkg/apis/certificates/validation of
// k8s.io/kubernetes), and returns the certificate.
func checkAPI(t *testing.T, s kubeapi.PodCertificateRequestStatus, r *kubeapi.PodCertificateRequest) *x509.Certificate {
	t.Helper()
	testutil.Requires(t, len(s.Conditions) == 1 && s.Conditions[0].Type == "Issued" && s.Conditions[0].Status == "True" &&
		s.Conditions[0].Reason != "", "conditions %+v", s.Conditions)
	block, _ := pem.Decode([]byte(s.CertificateChain))
	cert := testutil.Must(x509.ParseCertificate(block.Bytes))(t)
	csr := testutil.Must(x509.ParseCertificateRequest(r.Spec.StubPKCS10Request))(t)
	testutil.Holds(t, cert.PublicKey.(interface{ Equal(crypto.PublicKey) bool }).Equal(csr.PublicKey),
		"it is for another key")
	life := cert.NotAfter.Sub(cert.NotBefore)
	switch {
	case !s.NotBefore.Equal(cert.NotBefore) || !s.NotAfter.Equal(cert.NotAfter):
		t.Error("the status has other times than the certificate")
	case time.Since(cert.NotBefore).Abs() > 5*time.Minute:
		t.Errorf("it begins at %v", cert.NotBefore)
	case life < time.Hour || life > time.Duration(r.Spec.MaxExpirationSeconds)*time.Second:
		t.Errorf("it lives %v", life)
	case s.BeginRefreshAt.Before(cert.NotBefore.Add(10*time.Minute)) || s.BeginRefreshAt.After(cert.NotAfter.Add(-10*time.Minute)):
		t.Errorf("it is to be replaced at %v", s.BeginRefreshAt)
	}
	return cert
}

func TestKeysAndLifetimes(t *testing.T) {
	ca := testutil.Must(pki.NewCA("agents"))(t)
	_, edwards, err := ed25519.GenerateKey(rand.Reader)
	testutil.NoError(t, err)
	for _, key := range []crypto.Signer{p256(t), edwards, testutil.Must(rsa.GenerateKey(rand.Reader, 3072))(t)} {
		for _, seconds := range []int32{3600, 3601, 86400, 7862400} {
			r := asked(t, key)
			r.Spec.MaxExpirationSeconds = seconds
			cert := checkAPI(t, testutil.Must(terms.Answer(r, ca))(t), r)
			testutil.Equal(t, cert.NotAfter.Sub(cert.NotBefore), min(terms.Lifetime, time.Duration(seconds)*time.Second),
				"%T for %d s lives", key, seconds)
			testutil.Succeeds(t, testutil.Err(cert.Verify(x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})),
				"verify")
		}
	}
}

// A certificate has an agent's id and role and nothing else, so both pods of a node, the old
// and the new, are the same agent to servers.
func TestIDs(t *testing.T) {
	ca := testutil.Must(pki.NewCA("agents"))(t)
	for _, tc := range []struct{ annotation, want string }{{"", "node-1.example"}, {"node", "node-1.example"}, {"pod", "konnectivity-agent-x"}} {
		r := asked(t, p256(t))
		if tc.annotation != "" {
			r.Spec.UnverifiedUserAnnotations = map[string]string{Annotation: tc.annotation}
		}
		cert := checkAPI(t, testutil.Must(terms.Answer(r, ca))(t), r)
		holder := testutil.Must(pki.HolderOf(cert))(t)
		if cert.Subject.String() != "CN="+tc.want || len(cert.DNSNames) != 1 || cert.DNSNames[0] != tc.want || len(cert.IPAddresses)+len(cert.EmailAddresses) != 0 || len(cert.URIs) != 1 {
			t.Errorf("%q: %v, %v, %v", tc.annotation, cert.Subject, cert.DNSNames, cert.URIs)
		}
		if holder != (pki.Holder{Role: pki.RoleAgent, TrustDomain: "one.example"}) || len(cert.ExtKeyUsage) != 1 || cert.ExtKeyUsage[0] != x509.ExtKeyUsageClientAuth || cert.IsCA {
			t.Errorf("%+v, %v", holder, cert.ExtKeyUsage)
		}
	}
}

func TestDenials(t *testing.T) {
	ca := testutil.Must(pki.NewCA("agents"))(t)
	forged := func(r *kubeapi.PodCertificateRequest) {
		csr := testutil.Must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "node-2"}}, p256(t)))(t)
		csr[len(csr)-1] ^= 1
		r.Spec.StubPKCS10Request = csr
	}
	for name, tc := range map[string]struct {
		change       func(*kubeapi.PodCertificateRequest)
		reason, says string
	}{
		"account": {func(r *kubeapi.PodCertificateRequest) { r.Spec.ServiceAccountName = "default" }, notAnAgent, "service account konnectivity-agent"},
		"annotation": {func(r *kubeapi.PodCertificateRequest) {
			r.Spec.UnverifiedUserAnnotations = map[string]string{"a.example/id": "x"}
		}, badAnnotation, `"a.example/id" means nothing`},
		"id": {func(r *kubeapi.PodCertificateRequest) {
			r.Spec.UnverifiedUserAnnotations = map[string]string{Annotation: "node-2"}
		}, badAnnotation, "want node or pod"},
		"no key":  {func(r *kubeapi.PodCertificateRequest) { r.Spec.StubPKCS10Request = nil }, badKey, "ECDSAP256 can"},
		"garbage": {func(r *kubeapi.PodCertificateRequest) { r.Spec.StubPKCS10Request = []byte("\x30\x82garbage") }, badKey, "cannot be used"},
		"forged":  {forged, badKey, "cannot be used"},
	} {
		r := asked(t, p256(t))
		tc.change(r)
		s := testutil.Must(terms.Answer(r, ca))(t)
		if len(s.Conditions) != 1 || s.Conditions[0].Type != "Denied" || s.Conditions[0].Reason != tc.reason || !strings.Contains(s.Conditions[0].Message, tc.says) || s.CertificateChain != "" || s.NotBefore != nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// A certificate never outlives the CA, nor lives less than was asked for: the CA has to be
// renewed first.
func TestCAThatIsAboutToExpire(t *testing.T) {
	ca := testutil.Must(pki.NewCAFor("agents", 23*time.Hour))(t)
	if s, err := terms.Answer(asked(t, p256(t)), ca); err == nil || !strings.Contains(err.Error(), "renew the CA") || len(s.Conditions) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// below is an intermediate CA.
func below(t *testing.T, root *pki.CA) *pki.CA {
	t.Helper()
	key := p256(t)
	above := testutil.Must(tls.X509KeyPair(root.CertPEM, root.KeyPEM))(t)
	template := &x509.Certificate{SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "below"}, NotAfter: time.Now().AddDate(1, 0, 0), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der := testutil.Must(x509.CreateCertificate(rand.Reader, template, root.Certificate(), key.Public(), above.PrivateKey))(t)
	leaf := testutil.Must(x509.ParseCertificate(der))(t)
	return testutil.Must(pki.CAOf(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}))(t)
}

// What an intermediate CA signs has the way up to the root.
func TestIntermediate(t *testing.T) {
	root := testutil.Must(pki.NewCA("root"))(t)
	ca := below(t, root)
	r := asked(t, p256(t))
	s := testutil.Must(terms.Answer(r, ca))(t)
	cert := checkAPI(t, s, r)
	block, rest := pem.Decode([]byte(s.CertificateChain))
	next, rest := pem.Decode(rest)
	testutil.Requires(t, block != nil && next != nil && len(rest) == 0, "%v", s.CertificateChain)
	between := x509.NewCertPool()
	between.AddCert(testutil.Must(x509.ParseCertificate(next.Bytes))(t))
	testutil.Succeeds(t, testutil.Err(cert.Verify(x509.VerifyOptions{Roots: root.Pool(), Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})),
		"verify")
}
