package certs

import (
	"errors"
	"io/fs"
	"os"
)

// file is to be written by pki.WriteCert or pki.WriteKey.
type file struct {
	path  string
	data  []byte
	write func(path string, data []byte) error
}

// writeAll writes new files into dir: all, or none. Remaining ones would block the
// next attempt, since no file is ever overwritten.
func writeAll(dir string, files []file) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for i, f := range files {
		err := f.write(f.path, f.data)
		if err == nil {
			continue
		}
		ours := files[:i]
		if !errors.Is(err, fs.ErrExist) {
			ours = files[:i+1] // what there is of it
		}
		takeBack(ours)
		return err
	}
	return nil
}

// takeBack removes written files.
func takeBack(files []file) {
	for _, f := range files {
		_ = os.Remove(f.path)
	}
}
