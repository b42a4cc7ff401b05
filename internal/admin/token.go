package admin

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/files"
)

const (
	// minToken is the least length of a token, in bytes: too many to guess.
	minToken = 32

	// maxToken is the length of the longest token, in bytes. It leaves room for
	// other headers.
	maxToken = 4096
)

// TokenDigest stands for a token, with which people and programs ask over HTTP.
// Only the digest is kept and compared: the token itself is in no log, error or
// answer. The zero TokenDigest belongs to no token.
type TokenDigest [sha256.Size]byte

// ParseToken reads a token from the content of a file, and ignores space around
// it. Errors do not contain the token.
func ParseToken(text []byte) (TokenDigest, error) {
	token := strings.TrimSpace(string(text))
	switch {
	case token == "":
		return TokenDigest{}, fmt.Errorf("it is empty: want a random token of at least %d characters", minToken)
	case len(token) < minToken:
		return TokenDigest{}, fmt.Errorf("the token has %d characters: want at least %d, random ones", len(token), minToken)
	case len(token) > maxToken:
		return TokenDigest{}, fmt.Errorf("the token has %d characters: want at most %d", len(token), maxToken)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return TokenDigest{}, errors.New("the token has a character that headers cannot carry: want one line of ASCII, without spaces")
	}
	return sha256.Sum256([]byte(token)), nil
}

// NewToken returns a random token for a file: with a line break at its end.
func NewToken() []byte {
	random := make([]byte, minToken)
	_, _ = rand.Read(random) // never fails
	return []byte(base64.RawURLEncoding.EncodeToString(random) + "\n")
}

// Is reports whether both are digests of the same token, in constant time.
func (d TokenDigest) Is(o TokenDigest) bool { return subtle.ConstantTimeCompare(d[:], o[:]) == 1 }

// TokenOf returns the token of a request: a bearer token, or the password of basic
// authentication, for which browsers ask, under any user name. given reports
// whether there is one; with a zero digest, it cannot be a token.
func TokenOf(r *http.Request) (d TokenDigest, given bool) {
	values := r.Header.Values("Authorization")
	if len(values) == 0 {
		return TokenDigest{}, false
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
	d, _ = ParseToken([]byte(token))
	return d, true
}

// askForToken tells a client which kinds of tokens the server takes.
func askForToken(w http.ResponseWriter) {
	w.Header().Add("WWW-Authenticate", "Bearer")
	w.Header().Add("WWW-Authenticate", `Basic realm="konnectivity: any user name, and a token as the password", charset="UTF-8"`)
}

// tokenAge is the age at which the content of a token file is read again.
const tokenAge = time.Second

// OpenTokenFile follows the file at path, which has a token. The last valid one stays in force
// while the file cannot be used.
func OpenTokenFile(path string, log logrus.FieldLogger) (*files.Followed[TokenDigest], error) {
	return files.Follow(path, 2*maxToken, tokenAge, ParseToken, func(err error) {
		log.WithError(err).WithField("file", path).Warn("the file with the token cannot be used as it is now; the last good token stays in force")
	})
}
