package admin

import (
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/files"
)

// tokenAge is the age at which the content of a token file is read again.
const tokenAge = time.Second

// TokenFile follows a file with a token. Its methods may be called from any
// goroutine.
type TokenFile struct {
	path string
	log  logrus.FieldLogger

	mu    sync.Mutex
	read  time.Time   // when the file was read last
	now   TokenDigest // the last good token
	fault string      // why the file's present content is no good, as logged
}

// OpenTokenFile reads the file at path. Errors do not name it.
func OpenTokenFile(path string, log logrus.FieldLogger) (*TokenFile, error) {
	d, err := readToken(path)
	if err != nil {
		return nil, err
	}
	return &TokenFile{path: path, log: log, read: time.Now(), now: d}, nil
}

// Token returns the token in the file, or the last good one: a file that cannot be
// read admits nobody new.
func (f *TokenFile) Token() TokenDigest {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.read) < tokenAge {
		return f.now
	}
	f.read = time.Now()
	d, err := readToken(f.path)
	switch {
	case err != nil && err.Error() != f.fault:
		f.fault = err.Error()
		f.log.WithError(err).WithField("file", f.path).Warn("the file with the token cannot be used as it is now; the last good token stays in force")
	case err == nil:
		f.now, f.fault = d, ""
	}
	return f.now
}

func readToken(path string) (TokenDigest, error) {
	text, err := files.Read(path, 2*maxToken)
	if err != nil {
		return TokenDigest{}, err
	}
	return ParseToken(text)
}
