package auth

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

// clockSkew is how far apart the clocks of this machine, of the API and of its
// signer may be before a token looks expired, or not yet valid.
const clockSkew = 5 * time.Minute

// maxNesting bounds the objects and arrays in a part of a token; those of
// Kubernetes have six. Parsers recurse, and the stacks for thousands of tokens
// that consist of brackets would take gigabytes.
const maxNesting = 64

// algorithms are those that Kubernetes signs tokens with.
var algorithms = []jose.SignatureAlgorithm{jose.RS256, jose.ES256, jose.ES384, jose.ES512}

// look is what a token shows without asking the API.
type look struct {
	rank rank
	pod  tokenKey // identifies the pod that the token names; zero if it names none
}

// lookAt ranks a token by its contents, which are believed for the rank only.
func (t *Tokens) lookAt(token string) look {
	if !shallow(token) {
		return look{rank: doubtful}
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return look{rank: doubtful} // opaque, as those of some authenticators
	}
	var claims jwt.Claims
	var private struct {
		Kubernetes struct {
			Pod struct {
				UID string `json:"uid"`
			} `json:"pod"`
		} `json:"kubernetes.io"`
	}
	if parsed.UnsafeClaimsWithoutVerification(&claims, &private) != nil || !t.fits(claims, time.Now()) {
		return look{rank: doubtful}
	}
	l := look{rank: t.keys.rank(parsed)}
	if uid := private.Kubernetes.Pod.UID; uid != "" {
		l.pod = sha256.Sum256([]byte("pod " + uid))
	}
	return l
}

// shallow reports whether a token is safe to parse.
func shallow(token string) bool {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return false
	}
	for _, part := range parts[:2] {
		text, err := base64.RawURLEncoding.DecodeString(part)
		if err != nil || bytes.Count(text, []byte("["))+bytes.Count(text, []byte("{")) > maxNesting {
			return false
		}
	}
	return true
}

// fits reports whether claims are those of a token that is accepted. Older tokens, from
// secrets, have neither audience nor expiry.
func (t *Tokens) fits(c jwt.Claims, now time.Time) bool {
	_, ours := t.users[c.Subject]
	return ours &&
		(len(c.Audience) == 0 || slices.Contains(c.Audience, t.cfg.Audience)) &&
		(c.Expiry == nil || now.Before(c.Expiry.Time().Add(clockSkew))) &&
		(c.NotBefore == nil || now.After(c.NotBefore.Time().Add(-clockSkew)))
}
