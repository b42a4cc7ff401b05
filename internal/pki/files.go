package pki

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

const (
	certMode fs.FileMode = 0o644 // public: any process that verifies reads it
	keyMode  fs.FileMode = 0o600 // secret: only its owner may read it
)

// WriteCert writes a PEM certificate as a new file, readable by all. A file
// that exists is an error (errors.Is fs.ErrExist) and stays as it is.
func WriteCert(path string, certPEM []byte) error { return writeNew(path, certPEM, certMode) }

// WriteKey writes a PEM private key as a new file that only its owner may
// read. A file that exists is an error (errors.Is fs.ErrExist).
func WriteKey(path string, keyPEM []byte) error { return writeNew(path, keyPEM, keyMode) }

// writeNew creates path exclusively, so that no key is ever overwritten, and
// flushes it to disk, so that what the caller reports as written is.
func writeNew(path string, data []byte, mode fs.FileMode) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists already and is not overwritten: %w", path, fs.ErrExist)
	}
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Sync(), f.Close()) // which name the file
}
