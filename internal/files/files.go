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
