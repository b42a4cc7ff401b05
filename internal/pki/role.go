package pki

import (
	"cmp"
	"crypto/x509"
	"fmt"
	"net/url"
	"strings"
)

// Role is what the holder of a certificate is, as its URI name says:
// spiffe://TRUST-DOMAIN/konnectivity/ROLE.
type Role string

// The roles. A server has the same one for its clients and for its agents.
const (
	RoleAgent  Role = "agent"
	RoleClient Role = "client" // a sidecar, kube-apiserver, an operator's tool
	RoleServer Role = "server"
)

const (
	// DefaultTrustDomain is a cluster's own domain, as its names end by default.
	DefaultTrustDomain = "cluster.local"

	roleScheme  = "spiffe"
	roleSegment = "konnectivity" // the paths below it are roles and nothing else

	// maxTrustDomain is that of SPIFFE (The SPIFFE Identity, §2.3).
	maxTrustDomain = 255
)

// Holder is the identity that a certificate states. The zero value: it has no
// role.
type Holder struct {
	Role        Role
	TrustDomain string
}

// URI is the name that a certificate of h has.
func (h Holder) URI() *url.URL {
	return &url.URL{Scheme: roleScheme, Host: h.TrustDomain, Path: "/" + roleSegment + "/" + string(h.Role)}
}

// HolderOf reads the role of a certificate. Other URIs are ignored. A
// misspelled role is an error, and so are two roles: otherwise such a
// certificate would pass for one without a role.
func HolderOf(cert *x509.Certificate) (Holder, error) {
	var found Holder
	for _, uri := range cert.URIs {
		if !claimsRole(uri) {
			continue
		}
		if found.Role != "" {
			return Holder{}, fmt.Errorf("it has more than one role: %.200q and %.200q", found.URI(), uri)
		}
		h, ok := parseHolder(uri)
		if !ok {
			return Holder{}, fmt.Errorf("its role %.200q is not valid: want spiffe://TRUST-DOMAIN/konnectivity/ and agent, client or server, in lower case", uri)
		}
		found = h
	}
	return found, nil
}

// claimsRole reports whether a URI is meant as a role, however it is spelled.
func claimsRole(uri *url.URL) bool {
	if !strings.EqualFold(uri.Scheme, roleScheme) {
		return false
	}
	if uri.RawQuery != "" || uri.Fragment != "" { // which no SPIFFE ID has (The SPIFFE Identity, §2)
		return strings.Contains(strings.ToLower(uri.String()), roleSegment)
	}
	path := cmp.Or(uri.Path, uri.Opaque)
	if plain, err := url.PathUnescape(path); err == nil {
		path = plain // even if it was encoded twice
	}
	for segment := range strings.SplitSeq(path, "/") {
		if segment != "" && segment != "." && segment != ".." {
			return strings.EqualFold(segment, roleSegment)
		}
	}
	return false
}

// parseHolder accepts only the one correct spelling.
func parseHolder(uri *url.URL) (Holder, bool) {
	_, role, _ := strings.Cut(strings.TrimPrefix(uri.Path, "/"), "/")
	h := Holder{Role: Role(role), TrustDomain: uri.Host}
	switch h.Role {
	case RoleAgent, RoleClient, RoleServer:
		return h, ValidTrustDomain(h.TrustDomain) && uri.String() == h.URI().String()
	default:
		return Holder{}, false
	}
}

// ValidTrustDomain reports whether name is a trust domain by SPIFFE's rules.
func ValidTrustDomain(name string) bool {
	return name != "" && len(name) <= maxTrustDomain && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789.-_") == ""
}

// RoleRule is what certificates of peers must state.
type RoleRule struct {
	Want        Role
	Require     bool   // refuse those that have no role
	TrustDomain string // refuse roles of any other; "": the CA is enough
}

// Check returns nil if cert, which must have been verified, satisfies the rule,
// else a sentence that says why not.
func (r RoleRule) Check(cert *x509.Certificate) error {
	h, err := HolderOf(cert)
	switch {
	case err != nil:
		return fmt.Errorf("the certificate of %s is refused: %w", named(cert), err)
	case h.Role == "" && r.Require:
		return fmt.Errorf("the certificate of %s has no role, and --require-peer-role wants the role %s (konnectivity certs makes such certificates)", named(cert), r.Want)
	case h.Role == "":
		return nil
	case h.Role != r.Want:
		return fmt.Errorf("the certificate of %s has the role %s, and here only the role %s is accepted", named(cert), h.Role, r.Want)
	case r.TrustDomain != "" && h.TrustDomain != r.TrustDomain:
		return fmt.Errorf("the certificate of %s is of the trust domain %.100q, and --peer-trust-domain is %q", named(cert), h.TrustDomain, r.TrustDomain)
	}
	return nil
}

func named(cert *x509.Certificate) string { return fmt.Sprintf("%.100q", cert.Subject.CommonName) }
