// Package pki makes certificate authorities and the certificates they sign:
// for tests and quickstart in memory, for `konnectivity certs` as files.
//
// Keys are ECDSA P-256 throughout: accepted by every TLS peer the suite meets,
// and far cheaper in a handshake than RSA.
//
// It owns nothing. Certificates' roles are read by everything that judges a
// peer.
package pki

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"time"
)

const (
	// DefaultCALifetime is how long a CA lives by default: long, because
	// replacing a CA touches every peer.
	DefaultCALifetime = 10 * 365 * 24 * time.Hour
	// DefaultLifetime is how long a leaf lives by default. Leaves rotate
	// without a restart, so a year is generous enough.
	DefaultLifetime = 365 * 24 * time.Hour
	// ClockSkew is how far in the past a certificate starts to be valid, so
	// that peers whose clocks run a little late accept it at once. Of pods'
	// certificates kube-apiserver takes none that begin 5 minutes before its own
	// time (pkg/apis/certificates/validation in k8s.io/kubernetes).
	ClockSkew = 4 * time.Minute
	// serialBits stays below the 20 octets RFC 5280 §4.1.2.2 allows.
	serialBits = 128
)

// CA signs certificates. It is immutable and safe for concurrent use.
type CA struct {
	// CertPEM is the CA's certificate, PEM encoded.
	CertPEM []byte
	// KeyPEM is its private key in PKCS #8, PEM encoded. Secret.
	KeyPEM []byte

	cert  *x509.Certificate
	key   crypto.Signer
	chain []byte // PEM that goes with what an intermediate CA signs: its certificate and those above it
}

// NewCA makes a self-signed CA with a fresh key, valid for DefaultCALifetime.
// name is its subject's common name. It fails only if the system has no
// randomness to give.
func NewCA(name string) (*CA, error) { return NewCAFor(name, DefaultCALifetime) }

// NewCAFor is NewCA with a lifetime of the caller's choice.
func NewCAFor(name string, lifetime time.Duration) (*CA, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	template, err := newTemplate(pkix.Name{CommonName: name}, time.Now().Add(lifetime))
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the CA certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read back the CA certificate: %w", err)
	}
	return &CA{CertPEM: encodeCert(der), KeyPEM: keyPEM, cert: cert, key: key}, nil
}

// ParseCA returns the CA of a PEM encoded certificate and key, which must be a
// CA's and belong together.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("CA certificate and key: %w", err)
	}
	ca, err := CAOf(pair)
	if err == nil {
		ca.CertPEM, ca.KeyPEM = certPEM, keyPEM
	}
	return ca, err
}

// CAOf returns the CA of a parsed certificate and key, without their PEM.
func CAOf(pair tls.Certificate) (*CA, error) {
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("certificate of %q is not a CA's", pair.Leaf.Subject.CommonName)
	}
	ca := &CA{cert: pair.Leaf, key: key}
	if !bytes.Equal(ca.cert.RawIssuer, ca.cert.RawSubject) {
		for _, der := range pair.Certificate {
			ca.chain = append(ca.chain, encodeCert(der)...)
		}
	}
	return ca, nil
}

// Certificate is the CA's own certificate; do not modify it.
func (ca *CA) Certificate() *x509.Certificate { return ca.cert }

// Revoke returns a revocation list, PEM, of these certificates of the CA. It is to be
// replaced by the time next.
func (ca *CA) Revoke(next time.Time, certs ...*x509.Certificate) ([]byte, error) {
	now := time.Now()
	list := &x509.RevocationList{Number: big.NewInt(now.UnixNano()), ThisUpdate: now.Add(-time.Hour), NextUpdate: next}
	for _, cert := range certs {
		list.RevokedCertificateEntries = append(list.RevokedCertificateEntries, x509.RevocationListEntry{SerialNumber: cert.SerialNumber, RevocationTime: now})
	}
	der, err := x509.CreateRevocationList(rand.Reader, list, ca.cert, ca.key)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}), nil
}

// Pool returns a new pool that holds only this CA.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Leaf describes the certificate to issue.
type Leaf struct {
	CommonName   string
	Organization string   // optional
	DNS          []string // DNS names it is valid for
	IPs          []net.IP // addresses it is valid for
	Client       bool     // may authenticate a TLS client
	Server       bool     // may authenticate a TLS server
	Holder       Holder   // its role; zero: none
	// Lifetime counts from now; 0 is DefaultLifetime. A negative one yields an
	// expired certificate, for tests. It never outlives the CA.
	Lifetime time.Duration
}

// Pair is a certificate and its private key.
type Pair struct {
	CertPEM []byte
	KeyPEM  []byte // PKCS #8; secret
	pair    tls.Certificate
}

// TLS returns the pair for crypto/tls, or the empty certificate for a Pair that
// is not from Issue.
func (p Pair) TLS() tls.Certificate { return p.pair }

// Issue signs a certificate for a fresh key.
func (ca *CA) Issue(leaf Leaf) (Pair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return Pair{}, err
	}
	certPEM, err := ca.Sign(key.Public(), leaf)
	if err != nil {
		return Pair{}, err
	}
	p := Pair{CertPEM: certPEM, KeyPEM: keyPEM}
	if p.pair, err = tls.X509KeyPair(p.CertPEM, p.KeyPEM); err != nil {
		return Pair{}, fmt.Errorf("read back the certificate of %q: %w", leaf.CommonName, err)
	}
	return p, nil
}

// Sign signs a certificate for another's key, and returns it as PEM, with the chain that it
// needs where the CA is not a root.
func (ca *CA) Sign(key crypto.PublicKey, leaf Leaf) ([]byte, error) {
	template, err := ca.leafTemplate(leaf)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key, ca.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %q: %w", leaf.CommonName, err)
	}
	return append(encodeCert(der), ca.chain...), nil
}

// leafTemplate returns the certificate to sign for leaf.
func (ca *CA) leafTemplate(leaf Leaf) (*x509.Certificate, error) {
	subject := pkix.Name{CommonName: leaf.CommonName}
	if leaf.Organization != "" {
		subject.Organization = []string{leaf.Organization}
	}
	notAfter := time.Now().Add(cmp.Or(leaf.Lifetime, DefaultLifetime))
	if notAfter.After(ca.cert.NotAfter) {
		notAfter = ca.cert.NotAfter // a chain is only as good as its oldest link
	}
	template, err := newTemplate(subject, notAfter)
	if err != nil {
		return nil, err
	}
	template.DNSNames = leaf.DNS
	template.IPAddresses = leaf.IPs
	if leaf.Holder.Role != "" {
		template.URIs = []*url.URL{leaf.Holder.URI()}
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	if leaf.Client {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if leaf.Server {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return template, nil
}

// newTemplate returns what all certificates have: a random serial number, and a
// validity that began a little earlier.
func newTemplate(subject pkix.Name, notAfter time.Time) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialBits))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	notBefore := time.Now().Add(-ClockSkew)
	if !notBefore.Before(notAfter) {
		notBefore = notAfter.Add(-ClockSkew) // born expired, for tests
	}
	return &x509.Certificate{SerialNumber: serial, Subject: subject, NotBefore: notBefore, NotAfter: notAfter}, nil
}

// newKey makes a private key and its PEM form.
func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make a private key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("encode a private key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func encodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}
