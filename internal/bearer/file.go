package bearer

import (
	"sync"
	"time"

	"github.com/sirupsen/logrus"

	"konnectivity/internal/files"
)

// rereadEvery is how old the content of a file may be.
const rereadEvery = time.Second

// File is a file with a token, which may change. Its methods may be called from
// any goroutine.
type File struct {
	path string
	log  logrus.FieldLogger

	mu    sync.Mutex
	read  time.Time
	now   Digest
	fault string // why it cannot be used as it is, as logged
}

// OpenFile reads a file. An error does not name it.
func OpenFile(path string, log logrus.FieldLogger) (*File, error) {
	d, err := readFile(path)
	if err != nil {
		return nil, err
	}
	return &File{path: path, log: log, read: time.Now(), now: d}, nil
}

// Token is the one that the file has, or the last good one: a file that cannot
// be read lets nobody in whom it did not.
func (f *File) Token() Digest {
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.read) < rereadEvery {
		return f.now
	}
	f.read = time.Now()
	d, err := readFile(f.path)
	switch {
	case err != nil && err.Error() != f.fault:
		f.fault = err.Error()
		f.log.WithError(err).WithField("file", f.path).Warn("the file with the token cannot be used as it is now; the last good token stays in force")
	case err == nil:
		f.now, f.fault = d, ""
	}
	return f.now
}

func readFile(path string) (Digest, error) {
	text, err := files.Read(path, 2*maxLength)
	if err != nil {
		return Digest{}, err
	}
	return Parse(text)
}
