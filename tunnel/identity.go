package tunnel

import (
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Identity is who a client or an agent has proved to be to the first process of the suite
// that it reached: one name or more, one a line, each with its kind and a colon before it.
//
//	uri:spiffe://a.example/b   of its certificate
//	dns:a.example              of its certificate, in lower case
//	cn:a                       of its certificate
//	org:a                      of its certificate
//	serviceaccount:ns/name     of the token that an API has reviewed
//	socket:/run/a.sock         the unix socket by which it came
//	uid:1000                   the user that its process had as it connected there
//
// "" is not known: it has proved nothing, a process on the way does not tell, or there are
// more names than IdentitySize allows. Identities are comparable.
type Identity string

// IdentitySize is the most bytes of an Identity: a SPIFFE ID has up to 2,048 (SPIFFE-ID
// §2.3), and other names are short.
const IdentitySize = 4096

// IdentityKinds are the kinds of names.
func IdentityKinds() []string { return slices.Clone(identityKinds) }

var identityKinds = []string{"uri", "dns", "cn", "org", "serviceaccount", "socket", "uid"}

// NewIdentity returns the Identity with these names. It is "" if one of them has no kind, or
// a character that cannot be shown, or if they are too long together: a part of them must
// not pass for all, since a rule that denies may be for the rest.
func NewIdentity(names ...string) Identity {
	if slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, "\n") }) {
		return "" // it would be two
	}
	return CheckIdentity(strings.Join(names, "\n"))
}

// CheckIdentity returns the Identity that a peer has sent as text, or "" if it is none.
func CheckIdentity(text string) Identity {
	if text == "" || len(text) > IdentitySize || !utf8.ValidString(text) {
		return ""
	}
	for name := range strings.SplitSeq(text, "\n") {
		kind, value, _ := strings.Cut(name, ":")
		if value == "" || !slices.Contains(identityKinds, kind) || strings.ContainsFunc(value, func(r rune) bool { return !unicode.IsPrint(r) }) {
			return ""
		}
	}
	return Identity(text)
}

// Names are the names, in the order in which they were given; nil if it is not known.
func (i Identity) Names() []string {
	if i == "" {
		return nil
	}
	return strings.Split(string(i), "\n")
}

// String is how logs and the status page show an Identity.
func (i Identity) String() string { return strings.ReplaceAll(string(i), "\n", " ") }
