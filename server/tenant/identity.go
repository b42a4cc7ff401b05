package tenant

import (
	"crypto/sha256"
	"crypto/x509"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"konnectivity/tunnel"
)

// An identity is a name that certificates have: a URI, such as those of SPIFFE, a DNS
// name or, with commonName before it, the common name of the subject. No text is two
// of these: a URI has a ':', which the others lack or begin differently, and a DNS name
// no '='.
const commonName = "CN="

const (
	// maxIdentities bounds those of one side of a tenant, and the names of a
	// certificate that are looked at. A handful is usual.
	maxIdentities = 64

	// maxIdentity bounds the length of one: that of a SPIFFE ID (SPIFFE-ID §2.3).
	maxIdentity = 2048
)

// parseIdentity brings an identity into normal form.
func parseIdentity(text string) (string, error) {
	if len(text) > maxIdentity {
		return "", fmt.Errorf("%.80q… is longer than %d characters", text, maxIdentity)
	}
	switch {
	case strings.HasPrefix(text, commonName):
		if text == commonName {
			return "", fmt.Errorf("%q: the name is missing", text)
		}
		return text, nil
	case strings.Contains(text, ":"):
		uri, err := url.Parse(text)
		if err != nil || uri.Scheme == "" {
			return "", fmt.Errorf("%.300q is no URI", text)
		}
		return uriIdentity(uri), nil
	}
	name := tunnel.CanonicalHost(text)
	if validName(name) != nil {
		return "", fmt.Errorf("%.300q: want a URI, a DNS name, or %s and a common name", text, commonName)
	}
	return name, nil
}

// uriIdentity is a URI in normal form: hosts are compared without case.
func uriIdentity(uri *url.URL) string {
	normal := *uri
	normal.Host = strings.ToLower(uri.Host)
	return normal.String()
}

// NamesOf returns the identities of a certificate in normal form; none if it has more
// than maxIdentities. What is not in the form of its kind is no identity: a CA may let
// pass what looks like one of another kind.
func NamesOf(cert *x509.Certificate) (out []string) {
	if 1+len(cert.DNSNames)+len(cert.URIs) > maxIdentities {
		return nil
	}
	if name := cert.Subject.CommonName; name != "" {
		out = append(out, commonName+name)
	}
	for _, name := range cert.DNSNames {
		if name = tunnel.CanonicalHost(name); validName(name) == nil {
			out = append(out, name)
		}
	}
	for _, uri := range cert.URIs {
		if uri.Scheme != "" {
			out = append(out, uriIdentity(uri))
		}
	}
	return out
}

// IdentityOf returns who the holder of a certificate is; "" for one with more names than
// NamesOf takes.
func IdentityOf(cert *x509.Certificate) tunnel.Identity {
	names := NamesOf(cert)
	for i, name := range names {
		switch common, is := strings.CutPrefix(name, commonName); {
		case is:
			names[i] = "cn:" + common
		case strings.Contains(name, ":"):
			names[i] = "uri:" + name
		default:
			names[i] = "dns:" + name
		}
	}
	if len(names)+len(cert.Subject.Organization) > maxIdentities {
		return ""
	}
	for _, name := range cert.Subject.Organization {
		names = append(names, "org:"+name)
	}
	return tunnel.NewIdentity(names...)
}

// narrow has only certificates with one of these identities count.
func (c *CAs) narrow(identities []string) *CAs {
	only := slices.Compact(slices.Sorted(slices.Values(identities)))
	narrow := *c
	narrow.Only, narrow.Digest = only, sha256.Sum256(fmt.Appendf(nil, "%x %q", c.Digest, only))
	return &narrow
}

// counts says whether a certificate that one of the CAs has issued has an identity
// that is listed.
func (c *CAs) counts(cert *x509.Certificate) bool {
	return len(c.Only) == 0 || slices.ContainsFunc(NamesOf(cert), func(id string) bool {
		_, listed := slices.BinarySearch(c.Only, id)
		return listed
	})
}

// identityKey is the same for the same identity under the same CA. It begins as no
// server name does, and goes on as no CA alone.
func identityKey(ca *x509.Certificate, identity string) string {
	return caKey(ca) + identity
}

// caKey is the same for the same CA: its key, of which there may be several
// certificates. In DER, which says where it ends, nothing begins as another does.
func caKey(ca *x509.Certificate) string { return "\x00" + string(ca.RawSubjectPublicKeyInfo) }

// Admit is an error if a certificate, which one of the tenant's CAs has issued, has
// none of the identities that the tenant lists for them, or has one of another
// tenant's too.
func (t *Table) Admit(tenant *Spec, by *CAs, cert *x509.Certificate) error {
	if len(by.Only) == 0 {
		return nil
	}
	if !by.counts(cert) {
		return fmt.Errorf("it has no identity that the tenant %q lists", tenant.Name)
	}
	cas := by.Certs.Parse()
	for _, id := range NamesOf(cert) {
		for _, ca := range cas {
			if other := t.owned[identityKey(ca, id)].name; other != "" && other != tenant.Name {
				return fmt.Errorf("it has identities of two tenants, %q and %q", tenant.Name, other)
			}
		}
	}
	return nil
}
