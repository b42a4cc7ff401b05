// Package files reads small files that may be replaced by anything while a
// program runs: certificates, tokens, settings.
//
// All programs read such files by this package, mostly under a lock that others wait
// for.
package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
)

// Mode opens a file for reading without waiting, as opening a pipe would for its
// writer.
const Mode = os.O_RDONLY | NonBlock

// Read reads a regular file of at most so many bytes. Whatever else is there is
// refused at once. An error is a *fs.PathError.
func Read(path string, most int) ([]byte, error) {
	file, err := os.OpenFile(path, Mode, 0)
	if err != nil {
		return nil, err
	}
	return ReadAll(file, most)
}

// ReadAll is Read for a file that was opened with Mode, which it closes.
func ReadAll(file *os.File, most int) ([]byte, error) {
	defer func() { _ = file.Close() }()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, &fs.PathError{Op: "read", Path: file.Name(), Err: errors.New("not a regular file")}
	}
	var data bytes.Buffer
	data.Grow(int(min(info.Size(), int64(most))) + bytes.MinRead)
	_, err = data.ReadFrom(io.LimitReader(file, int64(most)+1))
	if err == nil && data.Len() > most {
		err = &fs.PathError{Op: "read", Path: file.Name(), Err: fmt.Errorf("larger than %d bytes", most)}
	}
	if err != nil {
		return nil, err
	}
	return data.Bytes(), nil
}

// MaxToken is how long a bearer token may be: what a HELLO of the link has room for beside
// the longest id and identifiers of an agent. Service account tokens have about 1 KiB.
const MaxToken = 7 << 10

// Token returns a function that reads the bearer token in path each time it is called, so
// that one that kubelet rotates is always the current one. Its errors do not tell what the
// file has. It may be called from any goroutine.
func Token(path string) func() (string, error) {
	return func() (string, error) {
		content, err := Read(path, MaxToken)
		if err != nil {
			return "", fmt.Errorf("read the service account token: %w", err)
		}
		token := strings.TrimSpace(string(content))
		if token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
			return "", fmt.Errorf("%s holds no bearer token", path)
		}
		return token, nil
	}
}
