package pki

import (
	"cmp"
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"strings"
)

// Name returns what to call the holder of a certificate: its common name, or
// its whole subject if it has none.
func Name(c *x509.Certificate) string { return NameOf(c.Subject) }

// NameOf is Name for a subject or an issuer.
func NameOf(n pkix.Name) string { return cmp.Or(n.CommonName, n.String()) }

// maxName is the longest name that DNS allows (RFC 1035 §2.3.4), maxLabel its
// longest part.
const (
	maxName  = 253
	maxLabel = 63
)

// IsDNSName reports whether name is a DNS name of labels; wildcards are none.
func IsDNSName(name string) bool {
	return len(name) <= maxName && !slices.ContainsFunc(strings.Split(name, "."), func(l string) bool { return !IsDNSLabel(l) })
}

// IsDNSLabel reports whether l is a label as hosts have it (RFC 1123 §2.1), in
// upper or lower case.
func IsDNSLabel(l string) bool {
	return l != "" && len(l) <= maxLabel && l[0] != '-' && l[len(l)-1] != '-' &&
		strings.Trim(strings.ToLower(l), "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}
