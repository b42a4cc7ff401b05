package admin

import (
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/files"
)

// tokenAge is the age at which the content of a token file is read again.
const tokenAge = time.Second

// TokenFile follows a file with a token. Its methods may be called from any
// goroutine.
type TokenFile struct {
	token *files.Followed[TokenDigest]
}

// OpenTokenFile reads the file at path.
func OpenTokenFile(path string, log logrus.FieldLogger) (*TokenFile, error) {
	token, err := files.Follow(path, 2*maxToken, tokenAge, ParseToken, func(err error) {
		log.WithError(err).WithField("file", path).Warn("the file with the token cannot be used as it is now; the last good token stays in force")
	})
	if err != nil {
		return nil, err
	}
	return &TokenFile{token}, nil
}

// Token returns the token in the file, or the last valid one if the file cannot be read.
func (f *TokenFile) Token() TokenDigest { return f.token.Get() }
