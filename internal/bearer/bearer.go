// Package bearer tells the tokens apart with which people and programs ask over
// HTTP. Of a token only its digest is kept and compared: the token itself is in
// no log, error or answer.
package bearer

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

const (
	// minLength is that of a token, in bytes: what nobody guesses, if it is
	// random.
	minLength = 32

	// maxLength leaves room for other headers.
	maxLength = 4096
)

// Digest stands for a token. The zero Digest is no token's.
type Digest [sha256.Size]byte

// Parse reads a token as a file has it: space around it does not count. Errors
// do not contain it.
func Parse(text []byte) (Digest, error) {
	token := strings.TrimSpace(string(text))
	switch {
	case token == "":
		return Digest{}, fmt.Errorf("it is empty: want a random token of at least %d characters", minLength)
	case len(token) < minLength:
		return Digest{}, fmt.Errorf("the token has %d characters: want at least %d, random ones", len(token), minLength)
	case len(token) > maxLength:
		return Digest{}, fmt.Errorf("the token has %d characters: want at most %d", len(token), maxLength)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return Digest{}, errors.New("the token has a character that headers cannot carry: want one line of ASCII, without spaces")
	}
	return sha256.Sum256([]byte(token)), nil
}

// New makes a token, with a line break at its end as files have it.
func New() []byte {
	random := make([]byte, minLength)
	_, _ = rand.Read(random) // never fails
	return []byte(base64.RawURLEncoding.EncodeToString(random) + "\n")
}

// Is says whether both are of the same token, in the same time for all.
func (d Digest) Is(o Digest) bool { return subtle.ConstantTimeCompare(d[:], o[:]) == 1 }

// Of is the token of a request: a bearer token, or the password of basic
// authentication, for which browsers ask, under any user name. given without a
// Digest is something that cannot be a token.
func Of(r *http.Request) (d Digest, given bool) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return Digest{}, false
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	switch {
	case len(values) > 1:
		token = ""
	case strings.EqualFold(scheme, "Basic"):
		_, token, _ = r.BasicAuth()
	case !strings.EqualFold(scheme, "Bearer"):
		token = ""
	}
	d, _ = Parse([]byte(token))
	return d, true
}

// Ask tells a client which kinds of tokens are taken.
func Ask(w http.ResponseWriter) {
	w.Header().Add("WWW-Authenticate", "Bearer")
	w.Header().Add("WWW-Authenticate", `Basic realm="konnectivity: any user name, and a token as the password", charset="UTF-8"`)
}
